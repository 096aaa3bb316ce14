"""`fedsim compare`: one table and one figure from several runs, sweeps and published points."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.cli.tables import shown
from fedsim.common.errors import InputError
from fedsim.common.files import whole_directory
from fedsim.privacy.rounding import shown_up
from fedsim.report.sweep_figure import draw
from fedsim.results.write import check_free
from fedsim.sweeps.compare import Compared, lines, read
from fedsim.sweeps.points import read_points
from fedsim.sweeps.series import EPSILON, interval_note, x_label
from fedsim.sweeps.summary import SHARED

_COLUMNS = ("source", "series", "epsilon", "error", "low", "high", "trials")
_FILES = ("comparison.csv", "comparison.png", "comparison.svg")


def run(directories: Sequence[Path], points: Path | None, out: Path | None) -> None:
    """Print the table, and write it as CSV beside the figure as PNG and SVG.

    Raises:
        InputError: a directory or the file of points cannot be used.
    """
    rows, measures, shared = [], dict[str, Path](), False
    for directory in directories:
        source = read(directory)
        rows += source.rows
        measures.setdefault(source.error, directory)
        shared |= source.shared
    if len(measures) > 1:
        first, second = list(measures)[:2]
        expected = f"measures {second!r} and {measures[first]} {first!r}; compare runs of one kind"
        raise InputError("RUN", str(measures[second]), expected)
    rows += read_points(points) if points else []
    folder = check_free(out or Path("runs") / f"comparison-{datetime.now():%Y%m%d-%H%M%S}")
    console = Console()
    console.print(_table(rows))
    if shared:
        console.print(f"Not private: {SHARED}.", highlight=False, soft_wrap=True)
    _write(rows, next(iter(measures)), folder)
    console.print(f"Wrote {shown(folder)}/ ({', '.join(_FILES)})", soft_wrap=True, highlight=False)


def _table(rows: Sequence[Compared]) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title="Test error, 90 % of trials in brackets",
        title_justify="left",
    )
    for name in ("from", "series"):
        table.add_column(name, overflow="fold")
    for name in ("epsilon", "error", "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        bounds = f" [{row.low:.4f}, {row.high:.4f}]" if row.low is not None and row.high is not None else ""
        trials = "published" if row.trials is None else str(row.trials)
        table.add_row(row.source, row.series, shown_up(row.epsilon, 6), f"{row.error:.4f}{bounds}", trials)
    return table


def _write(rows: Sequence[Compared], error: str, folder: Path) -> None:
    note = interval_note([row.trials for row in rows if row.trials])
    with whole_directory(folder) as draft:
        with (draft / _FILES[0]).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            writer.writerows([getattr(row, name) for name in _COLUMNS] for row in rows)
        draw(lines(rows), x_label(EPSILON), "test error", error, note, draft, "comparison")
