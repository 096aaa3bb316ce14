"""Curves of a run against its rounds: one function draws every curve and its band."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from fedsim.report.style import GREY, Look, look, thinned
from fedsim.results.metrics_table import TWIN, named
from fedsim.results.run_directory import RunData
from fedsim.results.summary import FEW, Summary

VARIANTS = {"private": (0, "private"), "nonprivate": (1, TWIN)}
_ROUNDING = 1e-14


def curve(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    style: Look,
    name: str,
    band: tuple[np.ndarray, np.ndarray] | None = None,
    **line: Any,
) -> None:
    """A line of `y` at `x`, both (points,), and where given the band around it: (low, high), (points,) each.

    `line` is more of what `Axes.plot` takes.
    """
    colour: dict[str, Any] = {"color": style.colour, "linestyle": style.dash}
    marked: dict[str, Any] = {"marker": style.marker, "markersize": 4.5} if "markevery" in line else {}
    axes.plot(x, y, label=name, **colour, **marked, **line)
    if band is not None:
        axes.fill_between(x, *band, color=style.colour, alpha=0.15, linewidth=0)
        for edge in band:
            axes.plot(x, edge, linewidth=0.6, **colour)


def draw_runs(axes: Axes, run: RunData, column: str) -> None:
    """A metric against rounds, of the run (filled markers) and its twin (hollow): mean over trials, and each
    of few trials as points, or the range that 90 % of many fall in.
    """
    for variant, style, name in variants_of(run):
        rounds, values = by_round(run.table("metrics").filter(pc.field("variant") == variant), column)
        if not len(rounds):
            continue
        kept = thinned(len(rounds))
        rounds, values = rounds[kept], values[:, kept]
        every = max(1, len(rounds) // 8)
        low, high = np.percentile(values, [5, 95], axis=0)
        many = len(values) >= FEW
        curve(
            axes,
            rounds,
            values.mean(0),
            style,
            name,
            (low, high) if many else None,
            markevery=(int(every * VARIANTS[variant][0] / 2), every),
            markerfacecolor=style.colour if variant == "private" else "white",
        )
        if len(values) > 1 and not many:
            _points(axes, rounds[::every], values[:, ::every], style)


def _points(axes: Axes, x: np.ndarray, values: np.ndarray, style: Look) -> None:
    """Each of few trials, (trials, points), by itself."""
    for row in values:
        axes.plot(x, row, ".", color=style.colour, markersize=3, alpha=0.6)


_LEVELS = {"pooled": "-.", "silo_alone": "--", "majority": ":", "mean": ":"}


def draw_baselines(axes: Axes, summary: Summary, column: str) -> None:
    """Draw each baseline's mean as a level."""
    for one in summary.baselines:
        if (level := one.spread(column)) is not None:
            axes.axhline(level.mean, color=GREY, linewidth=0.9, linestyle=_LEVELS[one.name], label=named(one))


def by_round(table: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values (trials, rounds)), as far as every trial that was begun has come and has a value."""
    rows: dict[int, dict[int, float]] = {}
    for trial, index, value in zip(*(table[c].to_pylist() for c in ("trial", "round", column)), strict=True):
        if value is not None:
            rows.setdefault(trial, {})[index] = value
    rounds = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    return np.array(rounds), np.array([[row[r] for r in rounds] for row in rows.values()])


def variants_of(run: RunData) -> Iterator[tuple[str, Look, str]]:
    """(variant, look, name) of the run and its twin."""
    for variant, (index, name) in VARIANTS.items():
        yield variant, look(index), name if run.summary.privacy.private else "no privacy"


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis that ends at rounding error, below which nothing is measured."""
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], _ROUNDING))
    axes.yaxis.set_major_formatter(LogFormatter())  # the usual one writes mathematics
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))
