"""The parts that each silo of a simulation divides its records into.

With a reserve, a silo permutes its records once, by a permutation that depends on no value and no trial. The
first h = round(fraction n / 2) train candidates, the next h score them. A run on the rest divides it anew in
every trial. So a record is for ever in one of three parts: to train candidates, to score them, or the rest.
Sizes are functions of n and the fraction, hence public. With another unit than the record all
this is said of units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.seeds import generators
from fedsim.data.dataset import Reserve
from fedsim.data.partition import UNUSED, Assignment
from fedsim.data.source import Ints


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
    whole: Assignment, test_fraction: float, reserve: Reserve | None, seed: int, trial: int
) -> tuple[Assignment, Assignment]:
    """Who trains on which records, and who tests, in one trial, drawn for each silo alone: other silos'
    presence changes nothing. Errors as `training_records`.
    """
    if reserve is not None:
        half = _halves(whole.names, whole.counts, reserve)
        train, test, whole = _parted(whole, ("reserve", seed), half, half)
        if reserve.use == "reserved":
            return train, test
    size = training_records(whole.names, whole.counts, test_fraction, None)
    train, test = _parted(whole, ("split", seed, trial), size)
    return train, test


def _parted(whole: Assignment, key: Sequence[object], *sizes: Ints) -> list[Assignment]:
    """Each silo's records, permuted by `generator(*key, silo)`, in parts of sizes (silos,), and the rest."""
    order, bounds = whole.every.copy(), whole.bounds.tolist()
    for drawn, first, last in zip(generators(key, whole.names), bounds, bounds[1:], strict=False):
        drawn.shuffle(order[first:last])  # in place: as `permutation` of these rows
    sizes = (*sizes, whole.counts - sum(sizes))
    part = np.full(len(whole.owner), UNUSED)
    part[order] = np.repeat(np.tile(np.arange(len(sizes)), len(bounds) - 1), np.stack(sizes, 1).ravel())
    owners = (np.where(part == number, whole.owner, UNUSED) for number in range(len(sizes)))
    return [Assignment(whole.names, owner) for owner in owners]


def _halves(names: Sequence[str], counts: Ints, reserve: Reserve) -> Ints:
    half = np.rint(reserve.fraction * counts / 2).astype(np.int64)
    if (bad := (half < 1) | (counts - 2 * half < 1)).any():
        silo = int(bad.argmax())
        hint = f"silo {names[silo]!r} would put aside {2 * half[silo]} of its {counts[silo]} units; at least "
        hint += "2 are needed, one to train and one to score with, and 1 must be left"
        raise InputError("scenario.data.reserve.fraction", reserve.fraction, hint)
    return half
