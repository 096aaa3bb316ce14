"""Features and targets on their final scale.

Declared scaling is a fixed function of one record: with the declared range [l, u],

    linear: x -> 2 (clip(x) - l) / (u - l) - 1
    log:    x -> 2 (log clip(x) - log l) / (log u - log l) - 1

so that preparing one record uses no other, and the privacy claim covers it. Standardising by training
statistics and principal components depend on every silo's records and on no noise: no guarantee covers them,
and they exist in simulation only.

References: K. Pearson, Philosophical Magazine 2 (1901), 559-572, doi:10.1080/14786440109462720.
"""

from __future__ import annotations

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset
from fedsim.data.source import Design, Floats, Ints, Ranges, Target


def prepare(data: Dataset, design: Design, rows: Ints, training: Ints) -> tuple[Floats, Target]:
    """Scaled features with their intercept, and targets.

    Args:
        data: says how.
        design: the records.
        rows: their numbers in the data set, for errors.
        training: places among `rows` of all silos' training records, for what pools records
            (`Dataset.pools_records`).

    Raises:
        InputError: a value is not finite, or there are fewer features than components.
    """
    features, target = _scaled(data, design, training), scaled_target(design, data.scaling)
    _require_finite(features, "feature", data, rows)
    _require_finite(target, "target", data, rows)
    if data.pca is not None:
        check_components(data.pca, features.shape[1])
        features = principal_components(features, training, data.pca)
    if data.intercept:
        features = np.hstack([features, np.ones((len(features), 1))])
    return features, target


def _require_finite(values: Target, what: str, data: Dataset, rows: Ints) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        expected = f"row {rows[bad[0][0]] + 1} has a {what} that is not finite"
        raise InputError("scenario.data.scaling", data.scaling, expected)


def _scaled(data: Dataset, design: Design, training: Ints) -> Floats:
    if data.scaling == "none":
        return design.features
    if data.scaling == "declared":
        return declared(design.features, design.ranges)
    return standardised(design.features, design.ranges, training)


def declared(values: Floats, ranges: Ranges) -> Floats:
    """Map (n, d) values to [-1, 1] by their ranges; indicators of categories stay 0 and 1.

    >>> declared(np.array([[20.0], [65.0], [90.0]]), Ranges.linear(np.array([20.0]), np.array([80.0]))).T
    array([[-1. ,  0.5,  1. ]])
    """
    clipped = np.clip(values, ranges.lower, ranges.upper)
    lower, upper = ranges.lower.copy(), ranges.upper.copy()
    for bound in (lower, upper):
        np.log(bound, out=bound, where=ranges.log)
    np.log(clipped, out=clipped, where=np.broadcast_to(ranges.log, clipped.shape))
    mapped = 2.0 * ((clipped - lower) / (upper - lower)) - 1.0
    return np.where(ranges.numeric, mapped, values)


def standardised(values: Floats, ranges: Ranges, training: Ints) -> Floats:
    """Subtract the training rows' mean and divide by their standard deviation (1 where it is 0)."""
    with np.errstate(over="ignore", invalid="ignore"):  # the check for finite features reports what overflows
        trained = values[training]
        mean, deviation = trained.mean(axis=0), trained.std(axis=0)
        mapped = (values - mean) / np.where(deviation > 0, deviation, 1.0)
    return np.where(ranges.numeric, mapped, values)


def scaled_target(design: Design, scaling: str) -> Target:
    """A number is mapped by its declared range, unless nothing is scaled; classes stay."""
    if design.target_range is None or scaling == "none":
        return design.target
    return declared(design.target.astype(np.float64)[:, None], design.target_range)[:, 0]


def principal_components(values: Floats, training: Ints, count: int) -> Floats:
    """Coordinates (n, count) of (n, d) values along the directions of largest variance, centred.

    Mean and directions are those of the training rows; the sign of a direction makes its largest entry
    positive, so that it does not depend on the linear algebra library.
    """
    trained = values[training]
    centre = trained.mean(axis=0)
    centred = trained - centre
    _, directions = np.linalg.eigh(centred.T @ centred)  # in ascending order of variance
    directions = directions[:, ::-1][:, :count]
    largest = np.abs(directions).argmax(axis=0)
    signs = np.sign(directions[largest, np.arange(count)])
    return np.asarray((values - centre) @ (directions * signs), dtype=np.float64)


def check_components(count: int | None, num_features: int) -> int:
    """The number of features after PCA.

    Raises:
        InputError: more components than features.
    """
    if count is not None and count > num_features:
        raise InputError("scenario.data.pca", count, f"at most {num_features}, the number of features")
    return num_features if count is None else count
