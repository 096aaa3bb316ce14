"""A model's metrics on test records. Simulation only: no silo releases them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.data.federation import Federation, SiloSplit
from fedsim.data.source import Ints, Labels
from fedsim.measure.metrics import Asked, Values, calibration, classified, exact, values_of
from fedsim.measure.objective import Risk, TrainingObjective
from fedsim.problems.kinds import Problem
from fedsim.protocol.links import Variant
from fedsim.protocol.rows import Rows
from fedsim.report.record import SiloMeasurement
from fedsim.report.sections.predictions import CalibrationBin, GroupMeasurement
from fedsim.scenario.metric import BY_GROUP, BY_SKLEARN

Measured = tuple[float | None, float | None, Values]  # error, loss and other metrics, where defined
Baselines = Callable[["Evaluator", "Final"], list[Any]]


class Final(NamedTuple):
    """A run's final model, which baselines are compared with."""

    w: Tensor  # (d,)
    noise: float  # the loss that its noise is expected to cost
    silos: Collection[str]  # those that answered


Tested = tuple[float, float, Values]  # the same on the pooled test records


class Evaluator:
    """Metrics on the pooled test records.

    Args:
        problem: what is minimised.
        silos: all of them, in canonical order.
        dtype: of features and parameters.
        asked: what to measure beside error and loss; None: nothing.
        objective: the training objective, where it is to be measured too.
        baselines: each measures some, on the test records that it is handed an evaluator of.
        trial: whose records they are; rows for the run's record name it.
    """

    def __init__(
        self,
        problem: Problem,
        silos: Sequence[SiloSplit],
        dtype: torch.dtype,
        asked: Asked | None = None,
        objective: TrainingObjective | None = None,
        baselines: Sequence[Baselines] = (),
        trial: int = 0,
    ) -> None:
        self.objective, self._baselines, self.trial = objective, baselines, trial
        self._problem, self._asked = problem, asked
        tests, names = [silo.test for silo in silos], () if asked is None else asked.groups
        rows = Rows.joined(tests)
        self.features, self.target = (torch.as_tensor(each).to(dtype) for each in rows[:2])
        self._names = [silo.name for silo in silos]
        self._counts = [len(own.target) for own in tests]
        self._owners = [own.owners for own in tests]
        self._weights = _by_person(self._owners)
        every = (None if own.groups is None else Labels(own.groups, names) for own in (rows, *tests))
        self._every_group, *self._groups = every
        self._chosen = () if asked is None else (asked.metric,)

    def __call__(self, w: Tensor, last: bool = False) -> Tested:
        """Error, mean loss and the chosen metric of parameters w (d,); at the last evaluation all metrics."""
        return self.of_scores(self._problem.scores(self.features, w), last)

    def of_scores(self, scores: Tensor, last: bool = True) -> Tested:
        """The result of the call, for scores of the pooled test records."""
        error = self._problem.error(scores, self.target)
        losses = self._problem.losses(scores, self.target)
        more = self._more(scores, self.target, self._every_group, BY_SKLEARN if last else self._chosen)
        if last and self._weights is not None:
            more |= {"person_loss": _defined(float(losses.double() @ self._weights))}
        return float(error), float(losses.mean()), more

    def _more(
        self, scores: Tensor, target: Tensor, groups: Labels | None, names: Collection[str] = BY_SKLEARN
    ) -> Values:
        if self._asked is None:
            return {}
        return values_of(names, self._problem, scores, target, self._asked, groups)

    def on_own(self, models: Mapping[str, Tensor]) -> dict[str | None, Measured]:
        """Models, (d,) each, on the test records of the silo that they are of; None: all these together."""
        parts = (torch.split(tensor, self._counts) for tensor in (self.features, self.target))
        own: dict[str | None, tuple[Tensor, Tensor, Labels | None]] = {
            name: (self._problem.scores(x, models[name]), y, groups)
            for name, x, y, groups in zip(self._names, *parts, self._groups, strict=True)
            if name in models
        }
        if own:
            scores, targets, groups = zip(*own.values(), strict=True)
            own[None] = torch.cat(scores), torch.cat(targets), joined(groups)
        return {name: self._measured(*each) for name, each in own.items()}

    def _measured(self, scores: Tensor, target: Tensor, groups: Labels | None) -> Measured:
        if not len(target):
            return None, None, {}
        error, loss = self._problem.error(scores, target), self._problem.losses(scores, target).mean()
        return _defined(float(error)), _defined(float(loss)), self._more(scores, target, groups)

    def of_model(self, variant: Variant, w: Tensor) -> Iterator[Any]:
        """Rows of all that is measured of a trial's final model w, (d,), for the run's record."""
        for measure in (self.by_silo, self.by_group, self.calibration):
            yield from measure(variant, w)

    def calibration(self, variant: Variant, w: Tensor) -> list[CalibrationBin]:
        """Predicted and observed probabilities at w, (d,)."""
        if self._asked is None:
            return []
        scores, of = self._problem.scores(self.features, w), (self.trial, variant)
        return calibration(self._problem, scores, self.target, self._asked, of)

    def exact(self, w: Tensor, by_person: bool) -> Values:
        """What an evaluation of w, (d,), estimates; persons weigh the same, or records."""
        assert self._asked is not None
        scores, weights = self._problem.scores(self.features, w), self._weights
        known = classified(self._problem, scores, self.target, self._asked, self._every_group)
        weight = weights.numpy() if weights is not None and by_person else None
        return {} if known is None else exact(replace(known, weight=weight))

    def baselines(self, final: Final) -> list[Any]:
        """Baselines without the federation; none where the scenario does not ask for them."""
        return [row for each in self._baselines for row in each(self, final)]

    def paired_error(self, silo: str, w: Tensor, other: Tensor) -> float | None:
        """Standard error of how the chosen metric of two models, (d,), differs on a silo's test records: by
        leaving out one of 20 parts of them after another (jackknife). None where it is not defined.
        """
        place = self._names.index(silo)
        x, y = (torch.split(each, self._counts)[place] for each in (self.features, self.target))
        units = torch.arange(len(y)) if (own := self._owners[place]) is None else torch.as_tensor(own)
        part = torch.unique(units, return_inverse=True)[1] % _PARTS  # a person's records are in one
        scores, groups = [self._problem.scores(x, each) for each in (w, other)], self._groups[place]
        found = []
        for kept in (part != k for k in range(int(part.max()) + 1 if len(y) else 0)):
            some = groups and Labels(groups.codes[kept.numpy()], groups.names)
            pair = [self._chosen_of(each[kept], y[kept], some) for each in scores]
            if None in pair:
                return None
            found.append(pair[0] - pair[1])
        return float(np.std(found) * (len(found) - 1) ** 0.5) if len(found) > 1 else None

    def _chosen_of(self, scores: Tensor, target: Tensor, groups: Labels | None) -> Any:
        error, loss, more = self._measured(scores, target, groups)
        return ({"error": error, "loss": loss} | more).get(*self._chosen)

    def risk(self, w: Tensor) -> Risk:
        """The training objective's, at w, (d,)."""
        return Risk(None, None) if self.objective is None else self.objective(w)

    def by_silo(self, variant: Variant, w: Tensor) -> list[SiloMeasurement]:
        """Each silo's test records alone, in canonical order; an error relative to the mean of the targets
        is None where a silo has no records, or equal targets only. `w`: one model (d,), or each silo's own,
        (silos, d).
        """
        if w.dim() == 1:
            scores = self._problem.scores(self.features, w)
        else:
            own = zip(torch.split(self.features, self._counts), w, strict=True)
            scores = torch.cat([self._problem.scores(x, model) for x, model in own])
        losses = self._problem.losses(scores, self.target)
        parts = (torch.split(tensor, self._counts) for tensor in (scores, self.target, losses))
        measured, names = [], (*self._chosen, *BY_GROUP)
        for name, own, target, loss, groups in zip(self._names, *parts, self._groups, strict=True):
            error = float(self._problem.error(own, target)) if len(target) else math.nan
            values = (_defined(error), _defined(float(loss.mean())) if len(target) else None, len(target))
            more = self._more(own, target, groups, names)
            measured.append(SiloMeasurement(self.trial, variant, name, *values, more))
        return measured

    def by_group(self, variant: Variant, w: Tensor) -> list[GroupMeasurement]:
        """Of each silo, and of all of them, the model w, (d,); none where groups are not known, or scores are
        of no class or not finite.
        """
        if self._asked is None or not self._asked.classes:
            return []
        scores = self._problem.scores(self.features, w)
        if not bool(scores.isfinite().all()):
            return []
        parts = (torch.split(tensor, self._counts) for tensor in (scores, self.target))
        silos = list(zip(self._names, *parts, self._groups, strict=True))
        rows = list[GroupMeasurement]()
        for name, own, target, groups in [(None, scores, self.target, self._every_group), *silos]:
            known = classified(self._problem, own, target, self._asked, groups)
            if groups is not None and known is not None:
                found = known.by_group.rows(groups.names)
                rows += [GroupMeasurement(self.trial, variant, name, *row) for row in found]
        return rows


def joined(parts: Sequence[Labels | None]) -> Labels | None:
    """The groups of several silos' records, one after another; None where one does not know them."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    return Labels(np.concatenate([part.codes for part in known]), known[0].names)


def _by_person(silos: Sequence[Ints | None]) -> Tensor | None:
    """Weights of all silos' test records with which each person weighs the same; None: whose is not known."""
    known = [codes for codes in silos if codes is not None]
    if len(known) < len(silos) or not sum(map(len, known)):
        return None
    weights = []
    for codes in known:  # whoever has records in two silos is two persons
        _, own, counts = np.unique(codes, return_inverse=True, return_counts=True)
        weights.append(1 / counts[own])
    joined = torch.from_numpy(np.concatenate(weights))
    return joined / joined.sum()


class Unseen(Evaluator):
    """Measures nothing: for candidates of private tuning, whose errors are not released."""

    def __init__(self) -> None:
        self.objective, self._baselines, self._asked, self.trial = None, (), None, 0

    def __call__(self, w: Tensor, last: bool = False) -> Tested:
        """Nothing."""
        return math.nan, math.nan, {}

    def of_model(self, variant: Variant, w: Tensor) -> Iterator[Any]:
        """Nothing."""
        return iter(())


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) and value < _DIVIDED_BY_ZERO else None


_DIVIDED_BY_ZERO = 1e100
_PARTS = 20  # of test records, in a jackknife


def odd_records(data: Federation) -> list[str]:
    """Lines for a run's warnings."""
    shared = data.shared_persons
    told = f"not private: persons with records in several silos, which compare no ids: {shared:,}"
    both = data.silos.train.rows.target, data.silos.test.rows.target
    meanings = {"training": "there is nothing to learn", "test": "any model that says so is never wrong"}
    alike = [
        f"all {len(target):,} {part} records have one and the same target: {means}"
        for (part, means), target in zip(meanings.items(), both, strict=True)
        if len(target) and (target == target[0]).all()
    ]
    lines = [*data.odd_ranges, *data.empty_groups, *alike, *_without_rates(data)]
    return [*lines, *([told] if shared else [])]


def _without_rates(data: Federation) -> list[str]:
    """Groups without a test record of some class."""
    rows = data.silos.test.rows
    if rows.groups is None:
        return []
    present = set(zip(rows.groups.tolist(), rows.target.tolist(), strict=True))
    return [
        f"group {name!r} has no test record of class {label}: gaps in its rates are not known"
        for code, name in enumerate(data.groups)
        for label in range(data.num_classes)
        if (code, label) not in present
    ]
