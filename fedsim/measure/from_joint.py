"""Gaps between groups from a noisy table of counts, each with the noise's standard error.

The table counts records by [group, label, predicted class] (the statistic `joint`), with independent noise of
one known standard deviation s in each cell. A gap is the difference of two rates (`fedsim.measure.groups`),
and a rate p is the share of one sum of cells in a larger one, b. With g the gap's gradient in the cells, its
standard error is s |g| to first order (delta method). Unlike a histogram's, what the cells add up to is not
known: a record without a group is in none.

First order is enough where b is at least 5 times its own noise: a rate's bias is then at most a fifth of its
standard error. A gap for which a group has less is unknown, and the reason names the group.

Of several groups or classes the largest gap is taken, and for odds the larger of two. Noise makes the largest
of equal gaps larger, which no standard error says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedsim.measure.from_histogram import Estimate
from fedsim.measure.groups import ByGroup

Array = npt.NDArray[np.float64]

_LEAST = 5.0  # a sum of cells, over its noise
_STEP = 1e-4  # of a cell, over its noise


def gaps(counts: npt.ArrayLike, noise: float, names: Sequence[str]) -> dict[str, Estimate]:
    """The parity, odds and opportunity gaps.

    Args:
        counts: of the cells, flat; of one silo or a sum.
        noise: s of a cell, >= 0.
        names: of the groups.
    """
    cells = np.asarray(counts, float)
    classes = math.isqrt(cells.size // len(names))
    table = cells.reshape(len(names), classes, classes)
    label = table.sum(axis=2) / math.sqrt(classes)  # sums of k cells over sqrt(k), so that their noise is s
    needed = {
        "parity_gap": table.sum(axis=(1, 2))[:, None] / classes,
        "odds_gap": label,
        "opportunity_gap": label[:, 1:] if classes == 2 else label,
    }
    found = {}
    for name, sums in needed.items():
        few = [group for group, least in zip(names, sums.min(axis=1), strict=True) if least <= _LEAST * noise]
        if few:
            found[name] = Estimate(math.nan, math.inf, f"too few records of {', '.join(few)} for the noise")
        else:
            found[name] = Estimate(_gap(name, table), _error(name, table, noise))
    return found


def _gap(name: str, table: Array) -> float:
    return float(getattr(ByGroup(table, None), name))


def _error(name: str, table: Array, noise: float) -> float:
    """s |g|, by central differences: of what one cell's noise, made small, does to the gap."""
    steps = _STEP * noise * np.eye(table.size).reshape(-1, *table.shape)
    moved = [_gap(name, table + step) - _gap(name, table - step) for step in steps]
    return float(np.linalg.norm(moved)) / (2 * _STEP)
