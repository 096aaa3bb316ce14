"""Curves of a run against its rounds: one function draws every curve and its band."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from fedsim.common.errors import InputError
from fedsim.common.files import atomic_files
from fedsim.report.outcome import value
from fedsim.report.record import Measurement
from fedsim.report.run_directory import RunData
from fedsim.report.style import GREY, Look, label, look, save, styled, thinned
from fedsim.report.summary import FEW, NONPRIVATE, OF_TRAINING, Summary
from fedsim.scenario.metric import METRICS

MEASURED_FIGURES = {
    **{name: (name.replace("_", "-"), metric.title) for name, metric in METRICS.items()},
    "excess_risk": ("excess-risk", "excess risk F(w) - F(w*)"),
    "gradient_mapping_sq": ("gradient-mapping", "squared gradient mapping"),
}
"""What is measured round by round: a file's name, and an axis's."""

_MOST, _LEAST = "\N{LESS-THAN OR EQUAL TO}", "\N{GREATER-THAN OR EQUAL TO}"
VARIANTS = {"private": (0, "private"), "nonprivate": (1, NONPRIVATE)}
LEVELS = {"pooled": "-.", "silo_alone": "--", "majority": ":", "mean": ":"}
"""The baselines that figures have, and the line of each."""


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
    """Draw a metric against rounds, of the run (filled markers) and its non-private baseline (hollow): the
    mean over trials, and each of few trials as points, or the range of 90 % of many.
    """
    for variant, style, name in variants_of(run):
        own = [row for row in run.rows(Measurement) if row.variant == variant]
        rounds, values = by_round((row.trial, row.round, value(row, column)) for row in own)
        if not len(rounds):
            continue
        kept = thinned(len(rounds))
        rounds, values = rounds[kept], values[:, kept]
        every = max(1, len(rounds) // 8)
        low, high = np.percentile(values, [5, 95], axis=0)
        band = (low, high) if len(values) >= FEW else None
        marked = int(every * VARIANTS[variant][0] / 2), every
        inside = style.colour if variant == "private" else "white"
        curve(axes, rounds, values.mean(0), style, name, band, markevery=marked, markerfacecolor=inside)
        for row in values if 1 < len(values) < FEW else ():
            axes.plot(rounds[::every], row[::every], ".", color=style.colour, markersize=3, alpha=0.6)


def draw_baselines(axes: Axes, summary: Summary, column: str) -> None:
    """Draw the mean of each baseline without the federation as a level."""
    for one in summary.baselines:
        if one.name in LEVELS and (level := one.spread(column)) is not None:
            name = f"{one.label}: {level.mean:.3g}"  # the level may lie above the axis
            axes.axhline(level.mean, color=GREY, linewidth=0.9, linestyle=LEVELS[one.name], label=name)


def by_round(points: Iterable[tuple[int, int, float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values (trials, rounds)) of points (trial, round, value), as far as every trial that was begun
    has come and has a value.
    """
    rows: dict[int, dict[int, float]] = {}
    for trial, index, number in points:
        if number is not None:
            rows.setdefault(trial, {})[index] = number
    rounds = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    return np.array(rounds), np.array([[row[r] for r in rounds] for row in rows.values()])


def variants_of(run: RunData) -> Iterator[tuple[str, Look, str]]:
    """(variant, look, name) of the run and its non-private baseline."""
    for variant, (index, name) in VARIANTS.items():
        yield variant, look(index), name if run.summary.privacy.private else "no privacy"


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis that ends at rounding error, below which nothing is measured."""
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-14))
    axes.yaxis.set_major_formatter(LogFormatter())  # the usual one writes mathematics
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))


class Line(NamedTuple):
    """A bound: a column of `OF_TRAINING`, the bound's name, its side (upper or lower), its value."""

    column: str
    name: str
    side: str
    value: float


def measured(run: RunData) -> list[str]:
    """The columns that the run measured. InputError if there is neither."""
    rows = run.rows(Measurement)
    if result := [name for name in OF_TRAINING if any(value(row, name) is not None for row in rows)]:
        return result
    objective = run.summary.objective
    why = f": {objective.reason}" if objective and objective.reason else ""
    hint = f"measured no excess risk{why}; run the scenario again with --set report.excess_risk=true"
    raise InputError("--run", str(run.directory), hint)


def draw(run: RunData, lines: Sequence[Line], directory: Path, folder: str) -> list[Path]:
    """Write a PNG and an SVG for each column that was measured and has a bound; returns the PNGs."""
    columns = [name for name in measured(run) if any(line.column == name for line in lines)]
    with atomic_files(directory) as draft:
        (draft / folder).mkdir()
        for column in columns:
            _draw(run, column, [line for line in lines if line.column == column], draft / folder)
    return [directory / folder / f"{_stem(column)}.png" for column in columns]


def _stem(column: str) -> str:
    return f"bounds-{MEASURED_FIGURES[column][0]}"


def _draw(run: RunData, column: str, lines: Sequence[Line], folder: Path) -> None:
    with styled(3.4) as (figure, axes):
        draw_runs(axes, run, column)
        # Levels, about the model that is returned; looks 0 and 1 are the run's and its baseline's.
        for i, line in enumerate(lines, 2):
            side, dash = (_MOST, (7, 2)) if line.side == "upper" else (_LEAST, (1.2, 1.4))
            said = label(f"{side} {line.value:.2g}: {line.name}", 54)
            axes.axhline(line.value, color=look(i).colour, linestyle=(0, dash), linewidth=1.4, label=said)
        axes.set(xlabel="rounds", ylabel=MEASURED_FIGURES[column][1])
        logarithmic(axes)
    save(figure, folder, _stem(column))
