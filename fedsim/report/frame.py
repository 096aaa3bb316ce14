"""Axes that show what matters, and say where they begin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedsim.report.ends import is_level

_UPPER = 0.5
"""Values that all lie above this share of the largest leave the axis's lower part empty."""
_EARLY = 0.1
"""The share of the rounds after which a run has begun in earnest."""
_FLAT = 0.25
"""Later values that take less than this share of an axis cannot be read on it."""


def frame(axes: Axes, direction: str, values: Sequence[float], late: Sequence[float] = ()) -> str:
    """Set an axis ("x" or "y") to show values; returns what must be said of it, empty where it begins at 0.

    Args:
        values: all that is drawn.
        late: of these, the ones that a reader came for, where the others may be left out of sight.
    """
    low, high, first = min(values, default=0.0), max(values, default=1.0), ""
    if late and max(late) - min(late) < _FLAT * (high - min(low, 0.0)) and high > 2 * max(late) > 0:
        first, low, high = f"the start is at {_number(high)}", min(late), max(late)
    cut = low > _UPPER * high > 0
    margin = 0.08 * (high - low) or 0.08 * abs(high)
    bottom = low - margin if cut or low < 0 else 0.0
    top = high + margin if high > low or high > 0 else 1.0
    getattr(axes, f"set_{direction}lim")(bottom, top)
    shown = f"axis from {_number(bottom)}{f' to {_number(top)}' if first else ', not 0'}" if cut else ""
    return "; ".join(filter(None, [shown or (first and f"axis to {_number(top)}"), first]))


def frame_lines(axes: Axes) -> None:
    """Let the y axis show all lines, the later nine tenths of them at least, and say in its label where it
    begins. Levels more than twice as high as the rest may lie above it.
    """
    lines = [(*np.asarray(line.get_data(), dtype=float), is_level(axes, line)) for line in axes.get_lines()]
    last = max((x.max() for x, _, level in lines if not level), default=0.0)
    late = [y[x >= _EARLY * last] for x, y, level in lines if not level]
    far = 2 * max(_finite(late), default=np.inf)
    levels = [y for _, y, level in lines if level and y[0] <= far]
    said = frame(
        axes, "y", _finite([*(y for _, y, level in lines if not level), *levels]), _finite([*late, *levels])
    )
    if said:
        axes.set_ylabel(f"{axes.get_ylabel()}\n({said})")


def _finite(values: Sequence[np.ndarray]) -> list[float]:
    joined = np.concatenate([*values, np.empty(0)])
    found: list[float] = joined[np.isfinite(joined)].tolist()
    return found


def _number(value: float) -> str:
    return f"{value:.3g}"
