"""What a linear model makes of each column: how far its values move the score, over the trials of a run.

Effects are those of prepared records that differ in one column, so that whatever prepares records for the
model, such as a logarithm, is in them. They are made of the run's model alone, and cost no further epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fedsim.common.errors import InputError
from fedsim.data.recipe import Fitted, Recipe
from fedsim.data.schema import CategoryColumn, Input, MeasuredColumn, NumberColumn, Reading
from fedsim.data.source import Floats
from fedsim.problems.glm import BUILT_IN
from fedsim.problems.kinds import gives_probabilities
from fedsim.report.run_directory import RunData
from fedsim.report.summary import FEW
from fedsim.report.tables import TextTable

MOST = 12  # columns that are drawn, and levels of each
_CLASSES = 3  # the most that have a curve each
_STEPS = 33  # places on a number's declared range, both ends among them
_CELLS = 10_000_000  # of prepared records; a model that needs more has no effects
_PLAIN = Reading(missing=())  # every number of a range is a number


class Effect(NamedTuple):
    """A column's effect at `points`, which are ascending numbers or labels.

    `curves`, (trials, points, outputs), have mean 0 over the range, on its scale, or over the labels.
    """

    name: str
    column: NumberColumn | CategoryColumn
    points: Sequence[Any]
    curves: Floats

    @property
    def mean(self) -> Floats:
        """Over trials, (points, outputs)."""
        return np.asarray(self.curves.mean(0))

    @property
    def band(self) -> Floats:
        """Where 90 % of trials fall, of few ones the lowest and the highest; (2, points, outputs)."""
        return np.percentile(self.curves, [0, 100] if len(self.curves) < FEW else [5, 95], axis=0)

    @property
    def size(self) -> float:
        """From the least to the largest mean, of the output where that is most."""
        return float(np.ptp(self.mean, axis=0).max())

    @property
    def shown(self) -> list[int]:
        """Places of the points that a person gets: of many labels those with the largest effects, in order;
        of a number its knots, or both ends and the middle.
        """
        if isinstance(self.column, NumberColumn):
            return list(range(len(self.points))) if self.column.knots else [0, _STEPS // 2, _STEPS - 1]
        return sorted(np.argsort(-np.abs(self.mean).max(axis=1), kind="stable")[:MOST].tolist())


class Effects(NamedTuple):
    """The effects of a run's model, the largest first."""

    found: list[Effect]
    of: str  # what they move
    outputs: list[str]  # names of the curves of each; one that is empty stands alone
    without: list[str]  # columns without a declared range
    whole: str  # where the numbers come from

    @property
    def said(self) -> list[str]:
        """Sentences about curves and bands, and about the columns that are not drawn."""
        trials = len(self.found[0].curves)
        which = "from the lowest to the highest" if trials < FEW else "where 90 % fall"
        band = (
            f"Line or point: the mean over {trials} trials, each with its own noise and its own split; band "
        )
        band += f"or bar: {which}. That is no confidence interval"
        few = "There is one model, and so no band: what its noise does to a curve is not seen"
        rest = [effect.name for effect in self.found[MOST:]]
        return [
            self.whole,
            band if trials > 1 else few,
            *_not_drawn(rest, "of smaller effect"),
            *_not_drawn(self.without, "without a declared range"),
        ]


def effects_of(run: RunData) -> Effects | None:
    """None where scores are no sum over columns that are known, as of a network, of principal components or
    of records of one norm; where there is no model; and of more than 3 classes.
    """
    variant = "private" if run.summary.privacy.private else "nonprivate"
    try:
        models, (kept, fitted) = run.models.get(variant, {}), run.trained
    except InputError:  # its files were taken away
        return None
    recipe = kept.recipe
    if not (models and run.summary.trials.finished and recipe) or kept.problem.name not in BUILT_IN:
        return None
    rows = dict(_rows(recipe))
    cells = sum(map(len, rows.values())) * recipe.num_features
    if not rows or not _adds_up(recipe) or cells > _CELLS or kept.num_classes > _CLASSES:
        return None
    problem, table = kept.made(), _table(recipe.columns, rows)
    scores = []
    for trial, w in models.items():
        prepared = fitted.get(trial, Fitted(recipe))
        features = torch.as_tensor(prepared.of_columns(table, _PLAIN)).to(w.dtype)
        scores.append(_moved(problem.scores(features, w).double().numpy(), prepared, kept.num_classes))
    parts = np.split(np.stack(scores), np.cumsum([len(points) for points in rows.values()])[:-1], axis=1)
    each = zip(rows.items(), parts, strict=True)
    found = [_centred(name, recipe, points, curves) for (name, points), curves in each]
    if not all(np.isfinite(effect.curves).all() for effect in found):
        return None
    found.sort(key=lambda effect: -effect.size)
    without = [name for name, column in recipe.columns.items() if isinstance(column, MeasuredColumn)]
    outputs = list(recipe.classes) if kept.num_classes > 2 else [""]
    return Effects(found, _of(recipe, gives_probabilities(problem)), outputs, without, _whole(run, recipe))


def _adds_up(recipe: Recipe) -> bool:
    joint: tuple[object, ...] = (recipe.transform, recipe.pca, recipe.record_norm)
    return all(step is None for step in joint) and recipe.scaling != "silo_statistics"


def _rows(recipe: Recipe) -> Iterator[tuple[str, Sequence[Any]]]:
    """The points of each column that has a declared range or labels."""
    for name, column in recipe.columns.items():
        if isinstance(column, CategoryColumn):
            yield name, column.categories
        elif isinstance(column, NumberColumn):
            evenly = np.geomspace if column.scale == "log" else np.linspace
            yield name, column.knots or evenly(column.lower, column.upper, _STEPS).tolist()


def _table(columns: Mapping[str, Input], rows: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A record for each point of each column, in which all other columns stay as they are."""
    ends = np.cumsum([len(points) for points in rows.values()])
    table = {name: np.zeros(ends[-1]) for name in columns}
    for (name, points), end in zip(rows.items(), ends, strict=True):
        values = np.full(ends[-1], points[0], dtype=object if isinstance(points[0], str) else np.float64)
        values[end - len(points) : end] = points
        table[name] = values
    return {name: pa.chunked_array([pa.array(values)]) for name, values in table.items()}


def _moved(scores: Floats, prepared: Fitted, classes: int) -> Floats:
    """What effects are told of, (records, outputs): of two classes the score of the second against the first,
    of more each against their mean, of a number the number itself, but for one with a logarithmic scale.
    """
    predicts = prepared.recipe.predicts
    if not classes:
        log = isinstance(predicts, NumberColumn) and predicts.scale == "log"
        return (scores if log else prepared.preparation.number(scores))[:, None]
    if scores.ndim == 1:
        return scores[:, None]
    return scores[:, 1:] - scores[:, :1] if classes == 2 else scores - scores.mean(axis=1, keepdims=True)


def _centred(name: str, recipe: Recipe, points: Sequence[Any], curves: Floats) -> Effect:
    column = recipe.columns[name]
    assert isinstance(column, NumberColumn | CategoryColumn)
    weights = np.ones(len(points))
    if isinstance(column, NumberColumn):  # a curve goes on between its points, straight on the column's scale
        steps = np.diff(column.on_scale(np.array(points)))
        weights = np.append(steps, 0) + np.append(0, steps)
    mean = np.average(curves, axis=1, weights=weights)
    return Effect(name, column, points, curves - mean[:, None])


def _of(recipe: Recipe, probabilities: bool) -> str:
    predicts = recipe.predicts
    if len(recipe.classes) == 2:
        return f"{'log odds' if probabilities else 'score'} of {recipe.target}={recipe.classes[1]}"
    if recipe.classes:
        return "score of each class less the mean of them"
    log = isinstance(predicts, NumberColumn) and predicts.scale == "log" and recipe.scaling != "none"
    return f"scaled logarithm of {recipe.target}" if log else f"predicted {recipe.target}"


def _whole(run: RunData, recipe: Recipe) -> str:
    if not run.summary.privacy.private:
        return "Made of the run's model, which is not private"
    if recipe.scaling == "training_statistics":
        return "Made of the run's private models, and of columns' means and deviations, which are not private"
    return "Made of the run's private models and of the declared columns, so that it costs no further epsilon"


def _not_drawn(names: Sequence[str], why: str) -> list[str]:
    if not names:
        return []
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
    return [f"Not drawn: {len(names):,} column{'s' * (len(names) > 1)} {why} ({listed})"]


def table_of(effects: Effects) -> TextTable:
    """The numbers of the columns that are drawn, a row for each of their points that a person gets."""
    trials, rows = len(effects.found[0].curves), []
    largest = max(np.abs(effects.found[0].curves).max(), np.finfo(np.float64).tiny)
    digits = max(0, 2 - math.floor(math.log10(largest)))
    for effect in effects.found[:MOST]:
        numbers = np.stack([effect.mean, *(effect.band if trials > 1 else ())])
        for place, (k, output) in product(effect.shown, enumerate(effects.outputs)):
            point = effect.points[place]
            told = [point if isinstance(point, str) else f"{point:.4g}", *filter(None, [output])]
            rows.append([effect.name, *told, *(f"{number:+z.{digits}f}" for number in numbers[:, place, k])])
    band = ["lowest", "highest"] if trials < FEW else ["5th percentile", "95th percentile"]
    classes = ["class"] if effects.outputs[0] else []
    titles = ["column", "value", *classes, "effect", *(band if trials > 1 else [])]
    return TextTable(f"On the {effects.of}, from each column's mean.", titles, rows)
