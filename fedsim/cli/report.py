"""`fedsim report`: the reviewer's page of a run or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import RUNS, app, plain_errors


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
