"""`fedsim compare`: several runs, sweeps and published points in one table; `fedsim report`: a run's page."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import RUNS, app, plain_errors
from fedsim.cli.output import say, shown, titled
from fedsim.privacy.rounding import shown_up

if TYPE_CHECKING:
    from fedsim.report.comparison import ComparisonData


@app.command(rich_help_panel=RUNS)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")],
    points: Annotated[
        Path | None, typer.Option(help="CSV of published points: series, epsilon, error[, low, high].")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to compare, such as auc; default: the first run's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New directory; default runs/comparison-TIME.")] = None,
) -> None:
    """Put several runs and sweeps into one table and one figure, a metric against epsilon."""
    with plain_errors():
        from fedsim.common.files import check_free
        from fedsim.report.comparison import FILES, compared, source_of, write
        from fedsim.report.sweep_summary import SHARED

        comparison = compared([source_of(directory) for directory in runs], points, metric)
        folder = check_free(out or Path("runs") / f"comparison-{datetime.now():%Y%m%d-%H%M%S}")
        console = Console()
        console.print(_table(comparison))
        if comparison.shares_noise:
            say(console, f"Not private: {SHARED}.")
        write(comparison, folder)
        say(console, f"Wrote {shown(folder)}/ ({', '.join(FILES)})")


def _table(comparison: ComparisonData) -> Table:
    from fedsim.report.page import capital
    from fedsim.scenario.metric import METRICS

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


@app.command(rich_help_panel=RUNS)
def report(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
) -> None:
    """Write the reviewer's page of a run: report.html, which needs no network, and its figures."""
    with plain_errors():
        from fedsim.report import page, sweep_page
        from fedsim.report.sweep_summary import is_sweep

        written = (sweep_page if is_sweep(directory) else page).write_page(directory)
        typer.echo(f"Wrote {written} and its figures")
