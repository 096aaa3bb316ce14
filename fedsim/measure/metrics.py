"""Metrics of scores on test records: scikit-learn's, which loads slowly, and `ByGroup`'s; None if undefined.

- Two classes: class 1 is the positive one. It is predicted where its probability is above the threshold, or
  where a problem gives no probability (a hinge loss) its score is above that of class 0.
- More classes: the one with the largest score is predicted, and values are macro ones, each class against the
  rest, as a mean over the classes that the test records decide: those that some have, and some have not. The
  Brier score is the sum over classes, from 0 to 2 (Brier, 1950); of two classes it is half of that.
- A number: in its own units, whatever scale it is trained on.
- Log loss and Brier score need probabilities, which a hinge loss does not give.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from math import nan
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedsim.data.prepare import Preparation
from fedsim.data.source import Floats, Ints, Labels
from fedsim.measure.groups import ByGroup
from fedsim.problems.kinds import Problem, head
from fedsim.protocol.links import Variant
from fedsim.report.sections.predictions import CalibrationBin
from fedsim.scenario.metric import BY_GROUP, METRICS
from fedsim.scenario.resolve import Resolved

Values = dict[str, float | None]  # {name of `fedsim.scenario.metric`: value}
BINS = 10


class Asked(NamedTuple):
    """The metrics to measure beside error and loss."""

    classes: int  # of the target; 0 for a number
    metric: str = "error"  # what is measured at every evaluation; all others only at the last
    threshold: float = 0.5  # see `report.threshold`
    units: Callable[[Floats], Floats] = lambda scaled: scaled  # trained targets (n,) in their own units
    groups: tuple[str, ...] = ()  # their names


def asked_of(resolved: Resolved, prepared: Preparation) -> Asked:
    """The metrics that a scenario asks for, of records with this preparation."""
    report, shape = resolved.scenario.report, resolved.outline
    return Asked(shape.num_classes, report.metric, report.threshold, prepared.number, shape.groups)


@dataclass(frozen=True, eq=False)
class Classified:
    """Records of classes, and their groups."""

    target: Ints  # classes, (n,)
    rank: Floats  # class scores, higher is more likely, (n, classes)
    probability: Floats | None  # (n, classes); None where the problem gives none
    threshold: float  # of class 1's probability
    groups: Labels | None = None  # codes (n,)
    weight: Floats | None = None  # of each record, (n,); None: the same

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.rank.shape[1])

    @cached_property
    def predicted(self) -> Ints:
        """(n,)."""
        largest: Ints = self.rank.argmax(axis=1)
        if self.classes == 2 and self.probability is not None:
            return (self.probability[:, 1] > self.threshold).astype(np.int64)
        return largest

    @cached_property
    def decided(self) -> list[int]:
        """Class 1 of two, or all of several, as far as some records have it and some have not."""
        counts = np.bincount(self.target, minlength=self.classes)
        asked = [1] if self.classes == 2 else range(self.classes)
        return [k for k in asked if 0 < counts[k] < len(self.target)]

    @cached_property
    def by_group(self) -> ByGroup:
        """What the records say of their groups, which are known."""
        assert self.groups is not None
        codes = self.groups.codes, self.target, self.predicted
        shape = len(self.groups.names), self.classes
        return ByGroup.of(codes, self.probability, shape, self.weight)

    def recalls(self, of_class: int) -> Floats:
        """Recall of each class (1), or of the rest against it (0), (classes,); NaN where there are none."""
        codes = np.zeros_like(self.target), self.target, self.predicted
        counts = ByGroup.of(codes, None, (1, self.classes), self.weight).counts[0]
        hits, label, total = counts.diagonal(), counts.sum(axis=1), counts.sum()
        if not of_class:
            hits, label = total - label - counts.sum(axis=0) + hits, total - label
        shares: Floats = hits / label
        return shares


def values_of(
    names: Collection[str],
    problem: Problem,
    scores: Tensor,
    target: Tensor,
    asked: Asked,
    groups: Labels | None = None,
) -> Values:
    """Metrics beside error and loss; None where one is not defined, NaN where scores are not finite.

    Args:
        names: metrics to compute; inapplicable ones are ignored.
        problem: whose scores they are.
        scores: (n,), or (n, outputs).
        target: (n,).
        asked: says how.
        groups: of the records, codes (n,), where they are known.
    """
    kinds = ["classes", *["groups"] * (groups is not None)] if asked.classes else ["numbers"]
    result: Values = dict.fromkeys(name for name in names if METRICS[name].of in kinds)
    if not result or not len(target):
        return result
    if not bool(scores.isfinite().all()):
        return dict.fromkeys(result, nan)
    given = scores, target, asked
    records = classified(problem, *given, groups) if asked.classes else _numbers(*given)
    return result if records is None else {name: _value(name, records) for name in result}


def exact(c: Classified) -> Values:
    """What an evaluation of these records estimates, without its noise and bins."""
    names = ("auc", "brier", *(() if c.groups is None else BY_GROUP))
    means = {"accuracy": c.rank.argmax(axis=1) == c.target, "observed_share": c.target == 1}
    if c.probability is not None:
        means["mean_predicted_probability"] = c.probability[:, 1]
    own = {name: float(np.average(values, weights=c.weight)) for name, values in means.items()}
    return own | {name: _value(name, c) for name in names}


def _value(name: str, records: Any) -> float | None:
    if METRICS[name].needs_probabilities and records.probability is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what has no meaning: that is None
        value = _COMPUTED[name](records)
    return float(value) if value is not None and np.isfinite(value) else None


def classified(
    problem: Problem, scores: Tensor, target: Tensor, asked: Asked, groups: Labels | None = None
) -> Classified | None:
    """None for scores that belong to no class."""
    scores = scores.double()
    probability = head(problem).probabilities(scores)
    if scores.dim() == 1 and asked.classes != 2:
        return None
    rank, known = scores.numpy(), None if probability is None else probability.numpy()
    if scores.dim() == 1:
        rank = np.stack([-rank, rank], axis=1)
    elif asked.classes == 2:
        rank = rank - rank[:, ::-1]
    elif known is not None and asked.classes > 2:
        rank = known  # between records only probabilities compare
    return Classified(target.numpy().astype(np.int64), rank, known, asked.threshold, groups)


class _Pairs(NamedTuple):
    """Numbers and errors of what was predicted, (n,) each."""

    target: Floats
    error: Floats


def _numbers(scores: Tensor, target: Tensor, asked: Asked) -> _Pairs | None:
    if scores.dim() != 1:
        return None
    true, predicted = (asked.units(values.double().numpy()) for values in (target, scores))
    return _Pairs(true, predicted - true)


def _log_loss(c: Any) -> Any:
    least = np.finfo(np.float64).eps
    own = c.probability[np.arange(len(c.target)), c.target].clip(least, 1 - least)
    return -np.average(np.log(own), weights=c.weight)


def _brier(c: Any) -> Any:
    squares = ((c.probability - np.eye(c.classes)[c.target]) ** 2).sum(axis=1)
    return np.average(squares, weights=c.weight) / (1 + (c.classes == 2))


def _of_ranks(score: Callable[[Floats, Floats], Any]) -> Callable[[Classified], Any]:
    """The mean over the decided classes, each against the rest, of a `score` of (k,) weights: of the records
    with the k highest ranks that are of the class, and that are not; equal ranks are taken together.
    """

    def one(c: Classified, k: int) -> Any:
        rank, so, weight = c.rank[:, k], c.target == k, 1 if c.weight is None else c.weight
        order = np.argsort(-rank)
        ends = np.flatnonzero(np.append(np.diff(rank[order]), 1))
        return score(*(np.cumsum((each * weight)[order])[ends] for each in (so, ~so)))

    return lambda c: np.mean([one(c, k) for k in c.decided]) if c.decided else None


def _auc(hits: Floats, alarms: Floats) -> Any:
    return np.trapezoid(np.append(0, hits), np.append(0, alarms)) / (hits[-1] * alarms[-1])


def _average_precision(hits: Floats, alarms: Floats) -> Any:
    return (np.diff(hits, prepend=0) * hits / (hits + alarms)).sum() / hits[-1]


def _recall(of_class: int) -> Callable[[Classified], Any]:
    """Mean recall of classes (1), or of the rest against each (0); with two classes that of class 1."""

    def value(c: Classified) -> Any:
        shares = c.recalls(of_class)
        return np.nanmean(shares[1:] if c.classes == 2 else shares)

    return value


def _balanced_accuracy(c: Classified) -> Any:
    shares = c.recalls(1)
    return np.nanmean(shares) if np.isfinite(shares).sum() > 1 else None


_COMPUTED: dict[str, Callable[[Any], Any]] = {
    "log_loss": _log_loss,
    "auc": _of_ranks(_auc),
    "average_precision": _of_ranks(_average_precision),
    "balanced_accuracy": _balanced_accuracy,
    "sensitivity": _recall(1),
    "specificity": _recall(0),
    "brier": _brier,
    "rmse": lambda pairs: np.sqrt((pairs.error**2).mean()),
    "mae": lambda pairs: np.abs(pairs.error).mean(),
    "r2": lambda pairs: 1 - (pairs.error**2).mean() / (pairs.target.var() * (np.ptp(pairs.target) > 0)),
    **{name: attrgetter(f"by_group.{name}") for name in BY_GROUP},
}


def calibration(
    problem: Problem, scores: Tensor, target: Tensor, asked: Asked, of: tuple[int, Variant] = (0, "private")
) -> list[CalibrationBin]:
    """Predicted and observed probabilities in bins (Guo et al., 2017), `of` a trial and variant: of class 1
    of two, else of the most probable class. Empty bins are left out; there are none where the problem gives
    no probabilities.
    """
    if not asked.classes or not len(target) or not bool(scores.isfinite().all()):
        return []
    c = classified(problem, scores, target, asked)
    if c is None or c.probability is None:
        return []
    stated = c.probability[:, 1] if c.classes == 2 else c.probability.max(axis=1)
    so = c.target == (1 if c.classes == 2 else c.probability.argmax(axis=1))
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], stated)
    counts, predicted, observed = (np.bincount(bins, weights, BINS) for weights in (None, stated, so))
    return [
        CalibrationBin(
            *of, int(k), int(counts[k]), float(predicted[k] / counts[k]), float(observed[k] / counts[k])
        )
        for k in np.flatnonzero(counts)
    ]
