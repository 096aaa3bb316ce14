"""Error against epsilon, or against whatever one number was varied: one line per algorithm.

Colours are Okabe and Ito's (safe for colour-blind readers); every line also has a dash and a marker of its
own, so that it reads in black and white.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX*<>"
_DASHES = ("-", (0, (6, 2)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_LEVEL: dict[str, Any] = {"linestyle": (0, (5, 5)), "linewidth": 1.0, "markerfacecolor": "white"}
_MOST_TICKS = 10


@dataclass(frozen=True)
class Point:
    """A mean, and the interval in which 90 % of single runs fall; `x` None: no privacy, a horizontal line."""

    x: float | None
    error: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together; `family` gives lines of one algorithm, and its twin, one colour."""

    label: str
    points: tuple[Point, ...]
    family: str = ""
    published: bool = False

    @property
    def levels(self) -> tuple[Point, ...]:
        """The points without x."""
        return tuple(point for point in self.points if point.x is None)


def draw(
    series: Sequence[Series], x_label: str, y_label: str, title: str, note: str, paths: Sequence[Path]
) -> None:
    """Write the picture once per path, in the format of its ending."""
    figure = Figure(figsize=(8.5, 4.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    xs = sorted({point.x for one in series for point in one.points if point.x is not None})
    handles = _draw_lines(axes, series, xs) if xs else _draw_rows(axes, series)
    (axes.set_ylabel if xs else axes.set_xlabel)(y_label)
    (axes.set_ylim if xs else axes.set_xlim)(0)
    if xs:
        axes.set_xlabel(x_label)
        _scale(axes, xs)
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    if handles:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize="small")
    figure.supxlabel(note, fontsize="x-small", color="#555555")
    for path in paths:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_lines(axes: Axes, series: Sequence[Series], xs: Sequence[float]) -> list[Line2D]:
    families = list(dict.fromkeys(one.family or one.label for one in series))
    lines = [one for one in series if len(one.levels) < len(one.points)]
    handles = []
    for one in sorted(series, key=lambda one: families.index(one.family or one.label)):
        style = _style(families.index(one.family or one.label), one)
        if one in lines:
            _draw_line(axes, one, style, _shift(xs, lines.index(one), len(lines)))
        for level in one.levels:
            _draw_level(axes, level, style, families.index(one.family or one.label))
        if one.points:
            handles.append(Line2D([], [], **(style if one in lines else style | _LEVEL), label=one.label))
    return handles


def _style(family: int, one: Series) -> dict[str, Any]:
    colour = COLOURS[family % len(COLOURS)]
    return {
        "color": colour,
        "linestyle": ":" if one.published else _DASHES[family % len(_DASHES)],
        "marker": _MARKERS[family % len(_MARKERS)],
        "markerfacecolor": "white" if one.published else colour,
        "markersize": 5,
    }


def _draw_line(axes: Axes, one: Series, style: dict[str, Any], shift: float) -> None:
    points = sorted((p for p in one.points if p.x is not None), key=lambda p: p.x or 0)
    x = [(p.x or 0) * shift for p in points]
    low = [p.error - _or(p.low, p) for p in points]
    high = [_or(p.high, p) - p.error for p in points]
    bars = [low, high] if any([*low, *high]) else None
    axes.errorbar(x, [p.error for p in points], bars, capsize=3, **style)


def _draw_level(axes: Axes, level: Point, style: dict[str, Any], family: int) -> None:
    """A dashed line across, with its family's marker where no other family's is."""
    axes.axhline(level.error, color=style["color"], linestyle=_LEVEL["linestyle"], linewidth=1.0)
    place = ([0.97 - 0.05 * (family % 10)], [level.error])
    axes.plot(*place, transform=axes.get_yaxis_transform(), **style | _LEVEL)


def _draw_rows(axes: Axes, series: Sequence[Series]) -> list[Line2D]:
    """Nothing to put on an axis: one row each."""
    for row, one in enumerate(series):
        style = _style(row, one) | {"linestyle": ""}
        for p in one.points:
            bars = [[p.error - _or(p.low, p)], [_or(p.high, p) - p.error]]
            axes.errorbar([p.error], [row], xerr=bars, capsize=3, **style)
    axes.set_yticks(range(len(series)), [one.label for one in series])
    axes.invert_yaxis()
    return []


def _or(value: float | None, point: Point) -> float:
    return point.error if value is None else value


def _logarithmic(xs: Sequence[float]) -> bool:
    return len(xs) > 1 and xs[0] > 0


def _shift(xs: Sequence[float], place: int, count: int) -> float:
    """Error bars at equal x stand a little apart, far less than two values of x do."""
    if not _logarithmic(xs):
        return 1.0
    closest = min(b / a for a, b in pairwise(xs))
    return float(min(1.02, closest ** (0.3 / count)) ** (place - (count - 1) / 2))


def _scale(axes: Axes, xs: Sequence[float]) -> None:
    if _logarithmic(xs):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(xs) <= _MOST_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(list(xs)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
