"""Preparation that is fitted on records without noise (simulation only, not private): no silo loads this.

Reference: K. Pearson, Philosophical Magazine 2 (1901), 559-572, doi:10.1080/14786440109462720.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedsim.data.source import Floats, Ints, Ranges


class Standard(NamedTuple):
    """Mean and standard deviation (1 where it is 0) of each of d columns of the pooled training records."""

    mean: Floats
    deviation: Floats

    def apply(self, values: Floats, ranges: Ranges) -> Floats:
        """Subtract the mean and divide by the deviation; features of categories stay."""
        with np.errstate(over="ignore", invalid="ignore"):  # the check for finite features reports it
            mapped = (values - self.mean) / self.deviation
        return np.where(ranges.numeric, mapped, values)


class Components(NamedTuple):
    """Mean (d,) and directions of largest variance (d, k) of the pooled, scaled training records."""

    centre: Floats
    directions: Floats

    def apply(self, scaled: Floats) -> Floats:
        """The components (n, k) of scaled features (n, d)."""
        return scaled @ self.directions - self.centre @ self.directions


def standard_of(trained: Floats) -> Standard:
    """Mean and deviation of training records (n, d)."""
    with np.errstate(over="ignore", invalid="ignore"):  # as in `Standard.apply`
        mean, deviation = trained.mean(axis=0), trained.std(axis=0)
        return Standard(mean, np.where(deviation > 0, deviation, 1.0))


def by_silo(values: Floats, ranges: Ranges, silos: Iterable[Ints]) -> Floats:
    """Standardise each silo's records by its own mean and deviation; unused records stay unchanged."""
    mapped = values.copy()
    for own in silos:
        mapped[own] = standard_of(values[own]).apply(values[own], ranges)
    return mapped


class Moments(NamedTuple):
    """Sums over n records x of x - about, (d,), and of its outer products, (d, d)."""

    n: int
    about: Floats
    first: Floats
    second: Floats


def moments(values: Floats, about: Floats) -> Moments:
    """Moments of records (n, d) about a point near their mean, so that no digits cancel."""
    shifted = values - about
    return Moments(len(values), about, shifted.sum(axis=0), shifted.T @ shifted)


_WHOLE: dict[bytes, Moments] = {}
"""Of the records that were prepared last: other splits of the same ones follow, trial after trial."""


def training_moments(features: Floats, training: Ints) -> Moments:
    """Moments of the rows `training` of records (n, d): the cached ones of all less those of the others."""
    others = np.ones(len(features), dtype=bool)
    others[training] = False
    if 2 * np.count_nonzero(others) > len(features):
        return moments(features[training], features[training].mean(axis=0))
    projected = features @ np.random.default_rng(0).standard_normal(features.shape[1])  # knows them again
    key = hashlib.sha256(projected.tobytes()).digest()
    if key not in _WHOLE:
        _WHOLE.clear()
        _WHOLE[key] = moments(features, features.mean(axis=0))
    whole, rest = _WHOLE[key], moments(features[others], _WHOLE[key].about)
    return Moments(len(training), whole.about, whole.first - rest.first, whole.second - rest.second)


def principal_components(trained: Moments, count: int) -> Components:
    """Mean and the `count` directions of largest variance of training records.

    A direction's largest entry is made positive, whatever sign the linear algebra library gave it.
    """
    off = trained.first / trained.n
    _, directions = np.linalg.eigh(trained.second - trained.n * np.outer(off, off))  # ascending variance
    directions = directions[:, ::-1][:, :count]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(count)])
    return Components(trained.about + off, directions * signs)
