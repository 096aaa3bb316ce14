"""Features and targets on their final scale.

Declared scaling is a fixed function of one record: with the declared range [l, u],

    linear: x -> 2 (clip(x) - l) / (u - l) - 1
    log:    x -> 2 (log clip(x) - log l) / (log u - log l) - 1

so that preparing one record uses no other, and the privacy claim covers it. Standardising by training
statistics depends on all silos' records and is covered by nothing.
"""

from __future__ import annotations

import numpy as np

from fedsim.data.source import Design, Floats, Ints, Ranges, Target


def declared(values: Floats, ranges: Ranges) -> Floats:
    """Map (n, d) values to [-1, 1] by their ranges; indicators of categories stay 0 and 1."""
    clipped = np.clip(values, ranges.lower, ranges.upper)
    lower, upper = ranges.lower.copy(), ranges.upper.copy()
    for bound in (lower, upper):
        np.log(bound, out=bound, where=ranges.log)
    np.log(clipped, out=clipped, where=np.broadcast_to(ranges.log, clipped.shape))
    mapped = 2.0 * ((clipped - lower) / (upper - lower)) - 1.0
    return np.where(ranges.numeric, mapped, values)


def standardised(values: Floats, ranges: Ranges, training_rows: Ints) -> Floats:
    """Subtract the training rows' mean and divide by their standard deviation (1 where it is 0)."""
    with np.errstate(over="ignore", invalid="ignore"):  # the check for finite features reports what overflows
        training = values[training_rows]
        mean, deviation = training.mean(axis=0), training.std(axis=0)
        mapped = (values - mean) / np.where(deviation > 0, deviation, 1.0)
    return np.where(ranges.numeric, mapped, values)


def scaled_target(design: Design, scaling: str) -> Target:
    """A number is mapped by its declared range, unless nothing is scaled; classes stay."""
    if design.target_range is None or scaling == "none":
        return design.target
    return declared(design.target.astype(np.float64)[:, None], design.target_range)[:, 0]
