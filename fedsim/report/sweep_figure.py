"""Error against epsilon, against whatever one number was varied, or against a second metric: one line per
algorithm, or where a second metric is on the axis per epsilon, along which another number was varied.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedsim.privacy.rounding import shown_up
from fedsim.report.record import grouped
from fedsim.report.style import WIDE, by_height, frame, from_zero, label, legend_below, look, styled

_MOST_TICKS = 10
_LETTER, _GAP = 0.03, 0.02  # a letter's width and the least gap between labels, as shares of the x axis
_NAME, _ROW, _NOTE = 50, 26, 52  # letters of a name in the legend, in front of a row, and of a line below
_HEIGHT, _LINE = 3.3, 0.25  # inches, of a figure and of each more line below it
_NAMED = 0.26  # inches, of a line's name beside the axes
_SHARE = 1 / 3  # of the axis, that lines keep where levels are far from them
_PUBLISHED = "x*"
_LEVEL: dict[str, Any] = {"linestyle": (0, (1, 1.5)), "linewidth": 0.9, "markerfacecolor": "white"}


class Point(NamedTuple):
    """A mean over trials, and the interval in which 90 % of single runs fall."""

    series: str  # the line that it is on
    x: float | None  # None: no privacy, or no place on the axis; a horizontal line
    value: float  # the mean
    low: float | None = None  # of the interval
    high: float | None = None  # of the interval
    trials: int | None = 1  # None for a published point
    family: str = ""  # of an algorithm and its non-private baseline, which look alike; empty: of no other
    source: str = ""  # the run, sweep or file that it is from
    across: tuple[float, float] | None = None  # the interval of x, where that is a mean too

    @property
    def ends(self) -> tuple[float, float]:
        """Of the interval; the mean where there is none."""
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return low, high


Lines = list[list[Point]]


def lines(points: Sequence[Point]) -> Lines:
    """Points by their lines, each with a family; both have the source where there are several."""
    several, named = len({point.source for point in points}) > 1, list[Point]()
    for point in points:
        prefix = f"{point.source}: " if several else ""
        family = prefix + (point.family or point.series)
        named.append(point._replace(series=prefix + point.series, family=family))
    return list(grouped(named, lambda point: (point.series, point.family, point.trials is None)).values())


def draw(
    points: Sequence[Point], below: Sequence[str], y_label: str, title: str, note: str, broad: bool = False
) -> Figure:
    """One figure of all points; without an x, rows. `below` stands under the axis of x, a line each.

    A `broad` one is as wide as a page on a large screen, with its lines' names beside the axes. Where x is
    a metric too, and has an interval, a line joins its points in their order.
    """
    against = any(point.across for point in points)
    series = lines(points)
    xs = sorted({point.x for point in points if point.x is not None})
    height = _HEIGHT + _LINE * (len(below) - 1) if xs else 1.5 + 0.4 * len(series)
    size = {"width": WIDE, "height": max(height, _NAMED * len(series))} if broad else {"height": height}
    with styled(**size, legend=False) as (figure, axes):
        if xs:
            _draw_lines(axes, series, [] if against else xs)
            from_zero(axes, "x") if against else _scale(axes, xs)
        else:
            _draw_rows(axes, series)
        notes = [*below, note] if xs else [y_label, note]
        notes.append(frame(axes, "y" if xs else "x", _ends(points, bool(xs))))
        letters = (_NOTE if xs else _ROW) * (2 if broad else 1)
        axes.set_xlabel("\n".join(textwrap.fill(each, letters) for each in notes if each))
        if xs:
            axes.set_ylabel(y_label)
            if broad and not against:  # a line may end at the left
                figure.legend(*by_height(axes), loc="outside right center", frameon=False)
            else:
                legend_below(figure, axes, None if against else by_height(axes))
        axes.set_title(label(title, 44))
        return figure


def _draw_lines(axes: Axes, series: Lines, xs: Sequence[float]) -> None:
    """Draw points in order of x, or without `xs` in their own."""
    drawn = [k for k, points in enumerate(series) if any(point.x is not None for point in points)]
    for k, (line, style) in enumerate(_styled(series, apart=not xs)):
        points = [p for p in series[k] if p.x is not None]
        if xs:
            points.sort(key=lambda p: p.x or 0)
        if points:
            shift = _shift(xs, drawn.index(k), len(drawn))
            name = label(line.series, _NAME)
            x, y = np.array([(p.x, p.value) for p in points]).T
            left, right = np.array([p.across or (p.x, p.x) for p in points]).T
            low, high = np.array([p.ends for p in points]).T
            arms = None if xs else (x - left, right - x)
            axes.errorbar(
                x * shift, y, (y - low, high - y), arms, capsize=3, elinewidth=1, label=name, **style
            )
        for level in (p for p in series[k] if p.x is None):
            own = {key: style[key] for key in ("color", "linestyle", "linewidth") if key in style}
            name = f"{label(line.series, _NAME)}: {level.value:.3g}"  # the level may lie outside the axis
            axes.axhline(level.value, label="" if points else name, **own)


def _styled(series: Lines, apart: bool) -> Iterator[tuple[Point, dict[str, Any]]]:
    """The first point of each line, and its style: a family has one look; its non-private baselines, and what
    has no place on the axis, are thin and dotted. `apart`: published families have the colours of the others.
    """
    looks: dict[bool, list[str]] = {True: [], False: []}
    for points in series:
        line, published = points[0], points[0].trials is None
        families = looks[apart and published]
        if line.family not in families:
            families.append(line.family)
        thin = line.series != line.family or all(point.x is None for point in points)
        yield line, _style(families.index(line.family), published) | (_LEVEL if thin else {})


def _ends(points: Sequence[Point], drawn: bool) -> list[float]:
    """What the axis shows: points and their bars; of levels among lines those that leave the lines room."""
    if not drawn:
        return [end for point in points for end in point.ends]
    ends = [end for point in points if point.x is not None for end in point.ends]
    levels = sorted((point.value for point in points if point.x is None), key=lambda at: abs(at - ends[0]))
    shown = list(ends)
    for level in levels:
        if max(ends) - min(ends) >= _SHARE * (max(*shown, level) - min(*shown, level)):
            shown.append(level)
    return shown


def _style(family: int, published: bool) -> dict[str, Any]:
    own = look(family)
    return {
        "color": own.colour,
        "linestyle": ":" if published else own.dash,
        "marker": _PUBLISHED[family % len(_PUBLISHED)] if published else own.marker,
        "markersize": 8 if published else 5.5,
    }


def _draw_rows(axes: Axes, series: Lines) -> None:
    """Draw every line as a row, where no number is varied."""
    for row, points in enumerate(series):
        style = _style(row, points[0].trials is None) | {"linestyle": ""}
        for point in points:
            low, high = point.ends
            arms = [[point.value - low], [high - point.value]]
            axes.errorbar([point.value], [row], xerr=arms, capsize=3, **style)
    names = [textwrap.fill(label(points[0].series, 2 * _ROW), _ROW) for points in series]
    axes.set_yticks(range(len(series)), names)
    axes.set_ylim(len(series) - 0.4, -0.6)


def _logarithmic(xs: Sequence[float]) -> bool:
    return len(xs) > 1 and xs[0] > 0


def _shift(xs: Sequence[float], place: int, count: int) -> float:
    """The factor that puts a line's error bars beside those of other lines at the same x."""
    if not _logarithmic(xs):
        return 1.0
    closest = min(b / a for a, b in pairwise(xs))
    return float(min(1.03, closest ** (0.3 / count)) ** (place - (count - 1) / 2))


def _scale(axes: Axes, xs: Sequence[float]) -> None:
    if _logarithmic(xs):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(xs) <= _MOST_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(_apart(xs)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number(value: float) -> str:
    return shown_up(float(f"{value:.12g}"))  # a tick carries the error of arithmetic, as 0.1 + 0.2 does


def _apart(xs: Sequence[float]) -> list[float]:
    """The values whose labels have room beside those to their left."""
    at = [math.log(x) for x in xs] if _logarithmic(xs) else list(xs)
    kept: list[int] = []
    for i in range(len(xs)):
        letters = len(_number(xs[i])) + len(_number(xs[kept[-1]])) if kept else 0
        if not kept or at[i] - at[kept[-1]] > (_LETTER * letters / 2 + _GAP) * (at[-1] - at[0]):
            kept.append(i)
    return [xs[i] for i in kept]
