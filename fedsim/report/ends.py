"""Labels at the ends of lines, where a reader looks for them, instead of a legend."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import isotonic_regression

from fedsim.report.style import lay_out

_LINE = 0.165  # inches of a line of a label
_LETTERS = 17  # in a line of a label
_MOST = 12  # labels fit beside a figure; more need a legend


class End(NamedTuple):
    """Where a line ends, what it is called, and how it is drawn: `colour`, `linestyle` and more of a line."""

    x: float
    y: float
    text: str
    style: dict[str, Any]


def label_ends(figure: Figure, axes: Axes, ends: Sequence[End]) -> bool:
    """Write each name to the right of the axes, as near to its line's end as the others let it; the axes have
    their limits by now. False, and nothing drawn, where the names are too many.
    """
    shown = [end for end in ends if np.isfinite(end.y)]
    texts = [textwrap.fill(end.text, _LETTERS, break_on_hyphens=False) for end in shown]
    if len(shown) > _MOST:
        return False
    heights = [_LINE * (text.count("\n") + 1.1) for text in texts]
    room = _room(figure, axes)
    if (missing := sum(heights) - room) > 0:
        figure.set_figheight(figure.get_figheight() + missing)
        room += missing
    places = [_place(axes, end) for end in shown]
    wanted = [y * room for _, y in places]
    for end, at, text, place in zip(shown, places, texts, apart(wanted, heights, room), strict=True):
        y = place / room
        axes.text(1.045, y, text, transform=axes.transAxes, fontsize=9.5, va="center", linespacing=1.05)
        lead = Line2D((at[0], 1.03), (at[1], y), transform=axes.transAxes, linewidth=0.8, **end.style)
        figure.add_artist(lead)  # an axes' own line would move its limits
    return True


def _place(axes: Axes, end: End) -> tuple[float, float]:
    """The end in fractions of the axes, or where it leaves them: on a logarithmic axis 0 has no place."""
    x, y = np.nan_to_num((axes.transScale + axes.transLimits).transform((end.x, end.y)))
    return float(np.clip(x, 0, 1)), float(np.clip(y, 0, 1))


def _room(figure: Figure, axes: Axes) -> float:
    """The axes' height in inches, once their titles and ticks have found their places."""
    lay_out(figure)
    return float(axes.get_position().height * figure.get_figheight())


def label_lines(figure: Figure, axes: Axes) -> bool:
    """As `label_ends`, of every line on the axes that has a name; levels end at the edge."""
    return label_ends(figure, axes, [_end(axes, line) for line in named(axes)])


def named(axes: Axes) -> list[Line2D]:
    """The lines that have a name."""
    return [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]


def is_level(axes: Axes, line: Line2D) -> bool:
    """Whether a line goes from edge to edge."""
    across, _ = line.get_transform().contains_branch_seperately(axes.transData)
    return not across


def _end(axes: Axes, line: Line2D) -> End:
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    last = np.flatnonzero(np.isfinite(y))[-1] if np.isfinite(y).any() else 0
    at = axes.get_xlim()[1] if is_level(axes, line) else x[last]
    style = {"color": line.get_color(), "linestyle": "-"}
    value, top, name = float(y[last]), axes.get_ylim()[1], str(line.get_label())
    if is_level(axes, line) and value > top:
        return End(float(at), top, f"{name} {value:.3g}, above", style)
    return End(float(at), value, name, style)


def apart(wanted: Sequence[float], heights: Sequence[float], room: float) -> list[float]:
    """Places as near as can be to those wanted, so that no two of such heights overlap, in the order wanted,
    and none leaves [0, room] if all have room there.

    >>> apart([1.0, 1.0, 5.0], [0.5, 0.5, 0.5], 6.0)
    [0.75, 1.25, 5.0]
    >>> apart([0.0, 0.1, 5.0], [0.5, 0.5, 0.5], 5.0)
    [0.25, 0.75, 4.75]
    """
    order, sizes = np.argsort(wanted, kind="stable"), np.asarray(heights)
    stacked = np.zeros(len(order))
    stacked[order] = np.cumsum(sizes[order]) - sizes[order] / 2  # places without a gap, from the bottom on
    moved = isotonic_regression((np.asarray(wanted) - stacked)[order]).x if len(order) else order
    places = stacked.copy()
    places[order] += np.clip(moved, 0.0, max(room - sizes.sum(), 0.0))
    return [float(place) for place in places]
