"""`fedsim compare`: one table and one figure from several runs, sweeps and published points."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedsim.cli.tables import say, shown, titled
from fedsim.curves.compare import FILES, Comparison, compare, source_of, write
from fedsim.curves.sweep_summary import SHARED
from fedsim.privacy.rounding import shown_up
from fedsim.report.page import capital
from fedsim.results.place import check_free
from fedsim.scenario.metric import METRICS


def run(directories: Sequence[Path], points: Path | None, metric: str | None, out: Path | None) -> None:
    """Print the table, and write it as CSV beside the figure as PNG and SVG.

    Raises:
        InputError: a directory or the file of points cannot be used.
    """
    comparison = compare([source_of(directory) for directory in directories], points, metric)
    folder = check_free(out or Path("runs") / f"comparison-{datetime.now():%Y%m%d-%H%M%S}")
    console = Console()
    console.print(_table(comparison))
    if comparison.shares_noise:
        say(console, f"Not private: {SHARED}.")
    write(comparison, folder)
    say(console, f"Wrote {shown(folder)}/ ({', '.join(FILES)})")


def _table(comparison: Comparison) -> Table:
    what = METRICS[comparison.metric]
    table = titled(f"{capital(what.title)}, 90 % of trials in brackets")
    for name in ("from", "series"):
        table.add_column(name, overflow="fold")
    for name in ("epsilon", what.short, "trials"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        bounds = f" [{row.low:.4f}, {row.high:.4f}]" if row.low is not None and row.high is not None else ""
        trials = "published" if row.trials is None else str(row.trials)
        table.add_row(row.source, row.series, shown_up(row.epsilon, 6), f"{row.value:.4f}{bounds}", trials)
    return table
