"""Error against epsilon: several algorithms with error bars, their non-private twins, published points."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from fedsim.protocol.errors import InputError
from fedsim.report.style import GREY, Look, from_zero, label, legend_below, look, save, styled


@dataclass(frozen=True)
class Series:
    """One algorithm.

    Args:
        epsilons: privacy levels, each > 0, in any order.
        means: mean error over trials at each of them.
        lows, highs: the interval drawn, of the same length; equal to `means` where there is one trial.
        twin: the non-private twin's error, if it was run.
    """

    name: str
    epsilons: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    twin: float | None = None

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.epsilons, self.means, self.lows, self.highs)}
        if len(lengths) > 1:
            raise ValueError(f"series {self.name!r}: epsilons, means, lows and highs differ in length")


@dataclass(frozen=True)
class Published:
    """Points read off elsewhere."""

    name: str
    epsilons: Sequence[float]
    errors: Sequence[float]


def error_against_epsilon(
    series: Sequence[Series],
    folder: Path,
    published: Sequence[Published] = (),
    *,
    error: str = "test error",
    interval: str = "90 % of trials",
    stem: str = "error-against-epsilon",
) -> str:
    """Draw STEM.png and STEM.svg in `folder`; returns the SVG to put into a page.

    Lines are the series, bars their intervals (algorithms side by side, so that bars do not hide each
    other), thin lines with hollow ends the non-private twins, crosses in grey the published points.

    Raises:
        ValueError: nothing to draw, or an epsilon that is not a positive number.
    """
    levels = sorted({e for s in series for e in s.epsilons} | {e for p in published for e in p.epsilons})
    if not levels or not all(0 < level < math.inf for level in levels):
        raise ValueError(f"epsilons: {levels} are not one or more positive numbers")
    with styled(3.3) as (figure, axes):
        for index, each in enumerate(series):
            _draw(axes, each, look(index), _shift(index, len(series)))
        for index, points in enumerate(published):
            _overlay(axes, points, index)
        _scale(axes, levels)
        _twins(axes, series)
        axes.set(xlabel=f"epsilon (bars: {interval})", ylabel=error)
        from_zero(axes, "y")
        legend_below(figure, axes, first=[label(each.name, 26) for each in series])
        return save(figure, folder, stem)


def _shift(index: int, count: int) -> float:
    """Factor on epsilon that sets the index-th of `count` series beside the others."""
    return float(1.025 ** (index - (count - 1) / 2))


def _draw(axes: Axes, series: Series, look_: Look, shift: float) -> None:
    order = np.argsort(series.epsilons)
    epsilons, means, lows, highs = (
        np.asarray(values, float)[order]
        for values in (series.epsilons, series.means, series.lows, series.highs)
    )
    axes.errorbar(
        epsilons * shift,
        means,
        yerr=np.maximum(0, [means - lows, highs - means]),
        color=look_.colour,
        linestyle=look_.dash,
        marker=look_.marker,
        markersize=5.5,
        capsize=3,
        elinewidth=1,
        label=label(series.name, 26),
    )


def _overlay(axes: Axes, points: Published, index: int) -> None:
    axes.plot(
        points.epsilons,
        points.errors,
        linestyle="none",
        marker=("x", "+", "1", "2", "3", "4")[index % 6],
        color=GREY,
        markersize=8,
        markeredgewidth=1.6,
        label=label(f"{points.name} (published)", 34),
    )


def _scale(axes: Axes, levels: Sequence[float]) -> None:
    """Logarithmic, with the levels themselves as ticks as far as they do not run into each other."""
    axes.set_xscale("log")
    ticks: list[float] = []
    for level in levels:
        if not ticks or math.log(level / ticks[-1]) > math.log(levels[-1] / levels[0]) / 8:
            ticks.append(level)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _twins(axes: Axes, series: Sequence[Series]) -> None:
    """A level per twin across the whole width, hollow markers of its algorithm at both ends."""
    ends = axes.get_xlim()
    known = [(index, each.twin) for index, each in enumerate(series) if each.twin is not None]
    for index, twin in known:
        own = look(index)
        axes.plot(
            ends,
            [twin, twin],
            color=own.colour,
            linewidth=0.8,
            linestyle=(0, (1, 1.5)),
            marker=own.marker,
            markerfacecolor="white",
            markersize=5.5,
            clip_on=False,
        )
    if known:
        axes.plot(
            [],
            [],
            color=GREY,
            linewidth=0.8,
            linestyle=(0, (1, 1.5)),
            marker="o",
            markerfacecolor="white",
            label="non-private twins",
        )
    axes.set_xlim(ends)


def read_published(path: Path) -> list[Published]:
    """Points of a CSV with the columns algorithm, epsilon and error; other columns are ignored.

    Raises:
        InputError: the file cannot be read, lacks a column or rows, or holds what is no number.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        reason = getattr(problem, "strerror", None) or "not a text file"
        raise InputError("published", str(path), f"cannot be read ({reason})") from None
    for column in ("algorithm", "epsilon", "error"):
        if column not in columns:
            has = ", ".join(columns) or "none"
            expected = f"no column {column!r}; needs algorithm, epsilon and error, has {has}"
            raise InputError("published", str(path), expected)
    if not rows:
        raise InputError("published", str(path), "holds no points, only a header")
    points: dict[str, list[tuple[float, float]]] = {}
    for line, row in enumerate(rows, start=2):
        point = _number(path, line, "epsilon", row["epsilon"]), _number(path, line, "error", row["error"])
        points.setdefault(row["algorithm"], []).append(point)
    return [Published(name, *zip(*each, strict=True)) for name, each in points.items()]


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and (value > 0 or column == "error")):
        kind = "a positive number" if column == "epsilon" else "a number"
        raise InputError("published", str(path), f"line {line}: {column} {text!r} is not {kind}")
    return value
