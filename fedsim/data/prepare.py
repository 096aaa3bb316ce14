"""Features and targets on their final scale, for training and for prediction alike.

Declared scaling is a fixed function of one record: with the declared range [l, u],

    linear: x -> 2 (clip(x) - l) / (u - l) - 1
    log:    x -> 2 (log clip(x) - log l) / (log u - log l) - 1

so that preparing one record uses no other, and the privacy claim covers it. So it does the transform
of images (`fedsim.data.transform`) and scaling each record to one norm. Standardising by training statistics
and principal components depend on the records of every silo and on no noise: no guarantee covers them, and
they exist in simulation only (`fedsim.data.fitted`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset, Scaling
from fedsim.data.source import Design, Floats, Ints, Ranges, Source, Target
from fedsim.data.transform import FIELD, Transform
from fedsim.protocol.rows import Rows

if TYPE_CHECKING:
    from fedsim.data.fitted import Components, Standard


@dataclass(frozen=True, eq=False)
class Preparation:
    """The preparation of a record; `standard` and `components` are not private and in simulation only."""

    scaling: Scaling
    intercept: bool
    ranges: Ranges
    target_range: Ranges | None
    record_norm: float | None
    transform: Transform | None
    standard: Standard | None = None
    components: Components | None = None

    def features(self, values: Floats) -> Floats:
        """Raw features (n, d), with missing values filled, as a model takes them: (n, d')."""
        return self.finished(self.scaled(values))

    def scaled(self, values: Floats, silos: Iterable[Ints] = ()) -> Floats:
        """The first step of `features`: (n, d) on their scale; `silos` as for `prepare`."""
        if self.scaling == "silo_statistics":
            from fedsim.data.fitted import by_silo

            return by_silo(values, self.ranges, silos)
        if self.standard is not None:
            return self.standard.apply(values, self.ranges)
        return declared(values, self.ranges) if self.scaling == "declared" else values

    def finished(self, scaled: Floats) -> Floats:
        """The other steps: transform or components, records of one norm, and a last feature that is 1."""
        if self.transform is not None:
            lower, upper = self.ranges.lower, self.ranges.upper
            public = lower + self.transform.subtract * (upper - lower)
            scaled = self.transform.apply(scaled - self.scaled(public[None]))
        if self.components is not None:
            scaled = self.components.apply(scaled)
        if self.record_norm is not None:
            scaled = of_norm(scaled, self.record_norm)
        return np.hstack([scaled, np.ones((len(scaled), 1))]) if self.intercept else scaled

    def target(self, values: Target) -> Target:
        """A number is mapped by its declared range, unless nothing is scaled; classes stay."""
        if self.target_range is None or self.scaling == "none":
            return values
        return declared(values.astype(np.float64)[:, None], self.target_range)[:, 0]

    def number(self, scaled: Floats) -> Floats:
        """The inverse of `target` for numbers, (n,): in their own units, also beyond the declared range."""
        if self.target_range is None or self.scaling == "none":
            return scaled
        return undeclared(scaled[:, None], self.target_range)[:, 0]


def squared_norms(data: Dataset, source: Source) -> tuple[float, float] | None:
    """As in `Outline`: every number is mapped to [-1, 1], or every record to one norm."""
    found = source.squared_norms if data.scaling == "declared" and data.pca is None else None
    if found is not None and data.transform is not None:
        found = data.transform.squared_norms(source.num_features)
    if data.record_norm is not None and source.num_classes:
        found = data.record_norm**2, data.record_norm**2
    return None if found is None else (found[0] + data.intercept, found[1] + data.intercept)


def num_kept(data: Dataset, num_features: int) -> int:
    """Features after `transform` or `pca`, of so many; InputError where they do not fit, or not together."""
    if data.pca is not None and data.pca > num_features:
        raise InputError("scenario.data.pca", data.pca, f"at most {num_features}, the number of features")
    if data.transform is None:
        return data.pca or num_features
    told = data.transform.model_dump(exclude_unset=True)
    if not data.images:
        raise InputError(FIELD, told, f"is for images, and {data.name} has none: leave it out")
    for field, value in data.fitted_values.items():
        hint = f"looks at no record, and {field}: {value} at all of them: leave one out"
        raise InputError(FIELD, told, hint)
    return data.transform.width(num_features)


_AT_ONCE = 1 << 14
"""Records that are prepared at a time, if the numbers of each are the same whoever it is prepared with."""


def prepare(
    data: Dataset, design: Design, rows: Ints, training: Ints, silos: Iterable[Ints] = ()
) -> tuple[Rows, Preparation]:
    """Records as a model takes them, and how others are prepared alike.

    Args:
        rows: the records' numbers in the data set, for errors.
        training: places among `rows` of all silos' training records, for what pools records.
        silos: places among `rows` of each silo's records, for what each fits on its own.

    InputError for a value that is not finite, or as `num_kept`, or for images without declared ranges.
    """
    width = num_kept(data, design.features.shape[1]) + data.intercept
    ranges, transform = design.ranges, data.transform
    if transform is not None and not np.isfinite(ranges.lower).all():
        hint = "is a part of the declared range, and none is declared: give ranges"
        raise InputError(f"{FIELD}.subtract", transform.subtract, hint)
    by = Preparation(data.scaling, data.intercept, ranges, design.target_range, data.record_norm, transform)
    if data.scaling == "training_statistics":
        from fedsim.data.fitted import standard_of

        by = replace(by, standard=standard_of(design.features[training]))
    features = np.empty((len(rows), width))
    alone = transform is None and data.pca is None and data.scaling != "silo_statistics"
    step = _AT_ONCE if alone else max(1, len(rows))
    for first in range(0, len(rows), step):
        few = slice(first, first + step)
        scaled = by.scaled(design.features[few], silos)
        _require_finite(scaled, "feature", data, rows[few])
        if data.pca is not None:
            from fedsim.data.fitted import principal_components, training_moments

            by = replace(by, components=principal_components(training_moments(scaled, training), data.pca))
        features[few] = by.finished(scaled)
    target = by.target(design.target)
    _require_finite(target, "target", data, rows)
    return Rows(features, target, None if design.groups is None else design.groups.codes), by


def _require_finite(values: Target, what: str, data: Dataset, rows: Ints) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        hint = f"row {rows[np.argwhere(~finite)[0][0]] + 1} has a {what} that is not finite"
        raise InputError("scenario.data.scaling", data.scaling, hint)


def declared(values: Floats, ranges: Ranges) -> Floats:
    """Map (n, d) values to [-1, 1] by their ranges; features of categories stay.

    >>> declared(np.array([[20.0], [65.0], [90.0]]), Ranges.linear(np.array([20.0]), np.array([80.0]))).T
    array([[-1. ,  0.5,  1. ]])
    """
    clipped = np.clip(values, ranges.lower, ranges.upper)
    lower, upper = _ends(ranges)
    np.log(clipped, out=clipped, where=np.broadcast_to(ranges.log, clipped.shape))
    clipped -= lower  # in place, since there may be gigabytes: 2 (x - lower) / (upper - lower) - 1
    clipped /= upper - lower
    clipped *= 2.0
    clipped -= 1.0
    np.copyto(clipped, values, where=~ranges.numeric)
    return clipped


def undeclared(mapped: Floats, ranges: Ranges) -> Floats:
    """The inverse of `declared` on [-1, 1], and beyond it the same formula; (n, d).

    >>> undeclared(np.array([[-1.0], [0.5], [2.0]]), Ranges.linear(np.array([20.0]), np.array([80.0]))).T
    array([[ 20.,  65., 110.]])
    """
    lower, upper = _ends(ranges)
    values = lower + (mapped + 1.0) / 2.0 * (upper - lower)
    np.exp(values, out=values, where=np.broadcast_to(ranges.log, values.shape))
    return np.where(ranges.numeric, values, mapped)


def _ends(ranges: Ranges) -> tuple[Floats, Floats]:
    """Lower and upper ends, their logarithms where the scale is one."""
    lower, upper = ranges.lower.copy(), ranges.upper.copy()
    for bound in (lower, upper):
        np.log(bound, out=bound, where=ranges.log)
    return lower, upper


def of_norm(values: Floats, norm: float) -> Floats:
    """Each record of (n, d), which is finite, scaled to this L2 norm; one of zeros stays.

    >>> of_norm(np.array([[3.0, 4.0], [0.0, 0.0], [1e300, 0.0]]), 10.0).tolist()
    [[6.0, 8.0], [0.0, 0.0], [10.0, 0.0]]
    """
    largest = np.abs(values).max(axis=1, keepdims=True)  # first, since a square may overflow
    shrunk = values / np.where(largest > 0, largest, 1.0)
    rows = np.ascontiguousarray(shrunk)  # else a row's sum depends on how many there are
    length = np.sqrt(np.vecdot(rows, rows))[:, None]
    return shrunk * (norm / np.where(length > 0, length, 1.0))
