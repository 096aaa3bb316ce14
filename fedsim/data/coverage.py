"""Declared ranges that hold hardly a value of their column, as only a simulation can see. Not private."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.data.dataset import Dataset
from fedsim.data.source import Design, Floats, Ranges, Source

_LEAST = 0.5
"""The share of a column's values that its range should hold: the others count as its ends."""


def odd_ranges(data: Dataset, source: Source, design: Design) -> tuple[str, ...]:
    """A line for each column whose declared range holds less than half of its values.

    >>> x, ranges = np.array([[0.1], [0.9], [0.2]]), Ranges.linear(np.array([20.0]), np.array([80.0]))
    >>> _missed(x, ranges, ["age"])
    ['the declared range [20, 80] of age holds 0 of 3 values: the others count as its ends']
    """
    found = list[str]()
    if data.scaling == "declared":
        found = _missed(design.features, design.ranges, _names(source, design.features.shape[1]))
    if design.target_range is not None and data.scaling != "none":
        target = design.target.astype(np.float64)[:, None]
        found += _missed(target, design.target_range, [source.target])
    return tuple(found)


def _names(source: Source, count: int) -> Sequence[str]:
    own = source.feature_names
    return own if len(own) == count else [f"x{j}" for j in range(count)]


def _missed(values: Floats, ranges: Ranges, names: Sequence[str]) -> list[str]:
    held = ((values >= ranges.lower) & (values <= ranges.upper)).sum(axis=0)
    bad = np.flatnonzero(ranges.numeric & (held < _LEAST * len(values)))
    return [
        f"the declared range [{ranges.lower[i]:g}, {ranges.upper[i]:g}] of {names[i]} holds {held[i]:,} of "
        f"{len(values):,} values: the others count as its ends"
        for i in bad.tolist()
    ]
