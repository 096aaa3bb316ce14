"""The theorems' bounds over what a run measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from fedsim.common.errors import InputError
from fedsim.report.plots import OBJECTIVE, curves, draw_curve, logarithmic, variants_of
from fedsim.report.style import label, legend_below, look, save, styled
from fedsim.results.read import Run

_MOST, _LEAST = "\N{LESS-THAN OR EQUAL TO}", "\N{GREATER-THAN OR EQUAL TO}"
_FIRST = 2  # looks 0 and 1 are the run's and its twin's


class Line(NamedTuple):
    """One bound: a column of `OBJECTIVE`, what it says, its side (upper or lower), its value."""

    column: str
    name: str
    side: str
    value: float


def measured(run: Run) -> list[str]:
    """The columns that the run measured.

    Raises:
        InputError: neither of them.
    """
    found = [name for name in OBJECTIVE if any(value is not None for value in run.metrics[name])]
    if found:
        return found
    why = f": {run.summary.objective['reason']}" if "reason" in run.summary.objective else ""
    expected = f"measured no excess risk{why}; run the scenario again with --set report.excess_risk=true"
    raise InputError("--run", str(run.directory), expected)


def draw(run: Run, lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write a PNG and an SVG for each column that was measured and has a bound; returns the PNGs."""
    folder.mkdir(exist_ok=True)
    return [
        _draw(run, column, own, folder)
        for column in measured(run)
        if (own := [line for line in lines if line.column == column])
    ]


def _draw(run: Run, column: str, lines: Sequence[Line], folder: Path) -> Path:
    stem, name = OBJECTIVE[column]
    with styled(3.4) as (figure, axes):
        for variant, look_, title in variants_of(run):
            draw_curve(axes, *curves(run.metrics, variant, column), look_, title, variant)
        _levels(axes, lines)
        axes.set(xlabel="rounds", ylabel=name)
        logarithmic(axes)
        legend_below(figure, axes)
        save(figure, folder, f"bounds-{stem}")
    return folder / f"bounds-{stem}.png"


def _levels(axes: Axes, lines: Sequence[Line]) -> None:
    """A bound is about the model that is returned: a level. Upper ones are dashed, lower ones dotted."""
    for i, line in enumerate(lines):
        upper = line.side == "upper"
        axes.axhline(
            line.value,
            color=look(_FIRST + i).colour,
            linestyle=(0, (7, 2)) if upper else (0, (1.2, 1.4)),
            linewidth=1.4,
            label=label(f"{_MOST if upper else _LEAST} {line.value:.2g}: {line.name}", 54),
        )
