"""The theorems' bounds over what a run measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from fedsim.common.errors import InputError
from fedsim.common.files import whole_files
from fedsim.report.curves import draw_runs, logarithmic
from fedsim.report.plots import FIGURES
from fedsim.report.style import label, legend_below, look, save, styled
from fedsim.results.run_directory import RunData
from fedsim.results.summary import OF_TRAINING

_MOST, _LEAST = "\N{LESS-THAN OR EQUAL TO}", "\N{GREATER-THAN OR EQUAL TO}"
_FIRST = 2  # looks 0 and 1 are the run's and its twin's


class Line(NamedTuple):
    """One bound: a column of `OF_TRAINING`, what it says, its side (upper or lower), its value."""

    column: str
    name: str
    side: str
    value: float


def measured(run: RunData) -> list[str]:
    """The columns that the run measured.

    Raises:
        InputError: neither of them.
    """
    found = [
        name for name in OF_TRAINING if run.table("metrics")[name].null_count < len(run.table("metrics"))
    ]
    if found:
        return found
    objective = run.summary.objective
    why = f": {objective.reason}" if objective and objective.reason else ""
    hint = f"measured no excess risk{why}; run the scenario again with --set report.excess_risk=true"
    raise InputError("--run", str(run.directory), hint)


def draw(run: RunData, lines: Sequence[Line], directory: Path, folder: str) -> list[Path]:
    """Write a PNG and an SVG for each column that was measured and has a bound; returns the PNGs."""
    columns = [name for name in measured(run) if any(line.column == name for line in lines)]
    with whole_files(directory) as draft:
        (draft / folder).mkdir()
        for column in columns:
            _draw(run, column, [line for line in lines if line.column == column], draft / folder)
    return [directory / folder / f"{_stem(column)}.png" for column in columns]


def _stem(column: str) -> str:
    return f"bounds-{FIGURES[column][0]}"


def _draw(run: RunData, column: str, lines: Sequence[Line], folder: Path) -> None:
    with styled(3.4) as (figure, axes):
        draw_runs(axes, run, column)
        _levels(axes, lines)
        axes.set(xlabel="rounds", ylabel=FIGURES[column][1])
        logarithmic(axes)
        legend_below(figure, axes)
        save(figure, folder, _stem(column))


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
