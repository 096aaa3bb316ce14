"""Rows of the data set by silo, and the parts that each silo divides its own into.

With a reserve, a silo permutes its records once, by a permutation that depends on no value and no trial. The
first h = round(fraction n / 2) train candidates, the next h score them. A run on the rest divides it anew in
every trial. So a record is for ever in one of three parts: to train candidates, to score them, or the rest.
Sizes are functions of n and the fraction, hence public. With another unit than the record all
this is said of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.seeds import generators
from fedsim.data.dataset import Reserve
from fedsim.data.source import Ints


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of silos: one silo's after another's, in increasing order each."""

    names: tuple[str, ...]  # sorted
    counts: Ints  # (silos,)
    every: Ints  # (rows,)

    @classmethod
    def of(cls, names: tuple[str, ...], owner: Ints) -> Rows:
        """Row r is of silo `names[owner[r]]`, and of none where that is -1."""
        counts = np.bincount(owner + 1, minlength=len(names) + 1)
        return cls(names, counts[1:], np.argsort(owner, kind="stable")[counts[0] :])

    @cached_property
    def bounds(self) -> Ints:
        """Where each silo's begin in `every`, and where the last one's end."""
        return np.append(0, np.cumsum(self.counts))

    @property
    def by_name(self) -> dict[str, Ints]:
        """Each silo's own."""
        return dict(zip(self.names, np.split(self.every, self.bounds[1:-1]), strict=True))

    def of_some(self, names: set[str]) -> Rows:
        """The named silos' alone."""
        some = np.array([name in names for name in self.names])
        return Rows(tuple(sorted(names)), self.counts[some], self.every[np.repeat(some, self.counts)])


def training_records(
    names: Sequence[str], counts: Ints, test_fraction: float, reserve: Reserve | None
) -> Ints:
    """Of silos' records those that train: n - round(test_fraction n), and at least 1. InputError unless each
    can put aside two and keep one.

    >>> training_records(["a", "b"], np.array([10, 1]), 0.25, None)
    array([8, 1])
    """
    if reserve is not None:
        half = _halves(names, counts, reserve)
        if reserve.use == "reserved":
            return half
        counts = counts - 2 * half
    training: Ints = (counts - np.rint(test_fraction * counts)).clip(1).astype(np.int64)
    return training


def divide(
    rows: Rows, test_fraction: float, reserve: Reserve | None, seed: int, trial: int
) -> tuple[Rows, Rows]:
    """Training rows and test rows of all silos in one trial, drawn for each silo alone: other silos' presence
    changes nothing. Errors as `training_records`.
    """
    if reserve is not None:
        half = _halves(rows.names, rows.counts, reserve)
        train, test, rows = _parted(rows, ("reserve", seed), half, half)
        if reserve.use == "reserved":
            return train, test
    size = training_records(rows.names, rows.counts, test_fraction, None)
    train, test = _parted(rows, ("split", seed, trial), size)
    return train, test


def _parted(rows: Rows, key: Sequence[object], *sizes: Ints) -> list[Rows]:
    """Each silo's rows, permuted by `generator(*key, silo)`, in parts of these sizes, (silos,) each, and the
    rest. A part has its rows in increasing order.
    """
    order, bounds = np.arange(len(rows.every)), rows.bounds.tolist()
    for drawn, first, last in zip(generators(key, rows.names), bounds, bounds[1:], strict=False):
        drawn.shuffle(order[first:last])  # in place: as `permutation` of these rows
    sizes = (*sizes, rows.counts - sum(sizes))
    part = np.empty(len(order), dtype=np.int8)
    part[order] = np.repeat(np.tile(np.arange(len(sizes)), len(bounds) - 1), np.stack(sizes, 1).ravel())
    return [Rows(rows.names, own, rows.every[part == number]) for number, own in enumerate(sizes)]


def _halves(names: Sequence[str], counts: Ints, reserve: Reserve) -> Ints:
    half = np.rint(reserve.fraction * counts / 2).astype(np.int64)
    if (bad := (half < 1) | (counts - 2 * half < 1)).any():
        silo = int(bad.argmax())
        hint = f"silo {names[silo]!r} would put aside {2 * half[silo]} of its {counts[silo]} units; at least "
        hint += "2 are needed, one to train and one to score with, and 1 must be left"
        raise InputError("scenario.data.reserve.fraction", reserve.fraction, hint)
    return half
