"""Brute force by definition, over raw records, in NumPy: terms of statistics, and what records weigh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray


def differences(loss: Callable[[Array], float], w: Array, step: float = 1e-6) -> Array:
    """The gradient by central differences."""
    return np.array([(loss(w + e) - loss(w - e)) / (2 * step) for e in np.eye(len(w)) * step])


def softmax(scores: Sequence[float]) -> Array:
    """Probabilities of the classes, from one score or one a class."""
    given = np.array([0.0, *scores] if len(scores) == 1 else scores)
    return np.exp(given - given.max()) / np.exp(given - given.max()).sum()


def one_hot(place: float, size: float) -> Array:
    return (np.arange(size) == place).astype(float)


class Asked(NamedTuple):
    """A record, its loss and scores as functions of the model, and a query's points and options."""

    x: Array
    y: float
    group: int
    loss: Callable[[Array], float]
    scores: Callable[[Array], Sequence[float]]
    points: Sequence[Array]
    options: Sequence[float]

    @property
    def p(self) -> Array:
        return softmax(self.scores(self.points[0]))


def _costed(a: Asked) -> Array:
    groups, classes, by_label, _ = map(int, a.options)
    costs = a.points[1].reshape(groups, -1, classes)[a.group, int(a.y) * by_label] * (a.group >= 0)
    return differences(lambda w: a.loss(w) + float(costs @ softmax(a.scores(w))), a.points[0])


def _log_loss(a: Asked) -> Array:
    least, most = -math.log1p(-a.options[0]), -math.log(a.options[0])
    return (-np.log(np.clip(a.p[[int(a.y)]], a.options[0], 1 - a.options[0])) - least) / (most - least)


def _score_histogram(a: Asked) -> Array:
    own = min(a.options[0] - 1, max(0, math.ceil(a.p[1] * a.options[0]) - 1))
    return one_hot(own + a.options[0] * (a.y == 1), 2 * a.options[0])


def _joint(a: Asked) -> Array:
    groups, classes, by_label, threshold = a.options
    said = one_hot(a.p[1] > threshold if len(a.p) == 2 else np.argmax(a.p), classes)
    row = one_hot(a.group * classes + a.y if by_label else a.group, groups * classes**by_label)
    return np.outer(row, said if threshold else a.p).flatten() * (a.group >= 0)


def _histogram(a: Asked) -> Array:
    edges = a.options[2:]
    return one_hot(np.searchsorted(edges[1:-1], a.x[int(a.options[1])], "right"), len(edges) - 1)


def _second_moment(a: Asked) -> Array:
    v = np.append(a.x, a.y) if a.options[0] else a.x
    return (np.outer(v, v) * np.where(np.eye(len(v)), 1, math.sqrt(2)))[np.triu_indices(len(v))]


def _held(a: Asked) -> float:
    return float(np.clip(a.x[int(a.options[0])], *a.options[1:3]))


TERMS: dict[str, Callable[[Asked], Array]] = {
    "gradient": lambda a: differences(a.loss, a.points[0]),
    "gradient_difference": lambda a: differences(a.loss, a.points[0]) - differences(a.loss, a.points[1]),
    "costed_gradient": _costed,
    "longer": lambda a: 1.0 * (np.linalg.norm(differences(a.loss, a.points[0])) > a.points[1]),
    "second_moment": _second_moment,
    "sum": lambda a: np.array([(_held(a) - a.options[1]) / (a.options[2] - a.options[1])]),
    "histogram": _histogram,
    "mistakes": lambda a: np.array([float(np.argmax(a.p) != a.y)]),
    "log_loss": _log_loss,
    "brier": lambda a: np.array([np.square(a.p - one_hot(a.y, len(a.p))).sum() / 2]),
    "score_histogram": _score_histogram,
    "joint": _joint,
}
OF_UNITS: dict[str, Callable[[list[Asked]], Array]] = {  # no means over a unit's records
    "contributions": lambda own: one_hot(np.searchsorted(own[0].options[:-1], len(own)), len(own[0].options)),
    "capped_sum": lambda own: np.array([min(1.0, sum(map(_held, own)) / own[0].options[3])]),
    "presence": lambda own: np.array([float(any(a.x[int(a.options[0])] == _held(a) for a in own))]),
}


def term_of_unit(name: str, own: list[Asked], bound: str | None, h: int | None, clip: float | None) -> Array:
    """A unit's term, by the table of `fedsim.protocol.unit`; without a clip its records' mean."""
    if name in OF_UNITS:
        return OF_UNITS[name](own)
    terms, s = [TERMS[name](record) for record in own], len(own)

    def cut(term: Array) -> Array:
        return term * min(1.0, clip / max(np.linalg.norm(term), 1e-300))

    if clip is None or bound == "mean":
        return np.sum(terms, axis=0) / s if clip is None else cut(np.sum(terms, axis=0) / s)
    if bound in (None, "clip"):
        return cut(np.sum(terms, axis=0))
    return min(h, s) / (h * s) * np.sum([cut(term) for term in terms], axis=0)


def weights(who: Array | None, n: int) -> Array:
    """What each record weighs in a mean: the same, or so that each person weighs the same."""
    if who is None:
        return np.full(n, 1 / n)
    _, code, count = np.unique(who, return_inverse=True, return_counts=True)
    return 1 / (len(count) * count[code])
