"""Curves of a run against its rounds: one function draws every curve and its band."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from fedsim.report.style import Look, look
from fedsim.report.summary import NONPRIVATE
from fedsim.scenario.metric import METRICS

MEASURED_FIGURES = {
    **{name: (name.replace("_", "-"), metric.title) for name, metric in METRICS.items()},
    "excess_risk": ("excess-risk", "excess risk F(w) - F(w*)"),
    "gradient_mapping_sq": ("gradient-mapping", "squared gradient mapping"),
}
"""What is measured round by round: a file's name, and an axis's."""

VARIANTS = {"private": (0, "private"), "nonprivate": (1, NONPRIVATE)}
LEVELS = {"pooled": "-.", "silo_alone": "--", "majority": ":", "mean": ":"}
"""The baselines that figures have, and the line of each."""


def curve(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    style: Look,
    name: str,
    band: np.ndarray | None = None,
    **line: Any,
) -> None:
    """A line of `y` at `x`, both (points,), and where given the band around it: low and high, (2, points).

    `line` is more of what `Axes.plot` takes.
    """
    colour: dict[str, Any] = {"color": style.colour, "linestyle": style.dash}
    marked: dict[str, Any] = {"marker": style.marker, "markersize": 4.5} if "markevery" in line else {}
    axes.plot(x, y, label=name, **colour, **marked, **line)
    if band is not None:
        axes.fill_between(x, *band, color=style.colour, alpha=0.15, linewidth=0)
        for edge in band:
            axes.plot(x, edge, linewidth=0.6, **colour)


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


def variants_of(private: bool) -> Iterator[tuple[str, Look, str]]:
    """(variant, look, name) of a run, `private` or not, and of its non-private baseline."""
    for variant, (index, name) in VARIANTS.items():
        yield variant, look(index), name if private else "no privacy"


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis that ends at rounding error, below which nothing is measured."""
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-14))
    axes.yaxis.set_major_formatter(LogFormatter())  # the usual one writes mathematics
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))
