"""`fedsim compare`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import RUNS, app, plain_errors


@app.command(rich_help_panel=RUNS)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")],
    points: Annotated[
        Path | None, typer.Option(help="CSV of published points: series, epsilon, error[, low, high].")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What is compared, such as auc; default: what the first run chose.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New directory; default runs/comparison-TIME.")] = None,
) -> None:
    """Put several runs and sweeps into one table and one figure, a metric against epsilon."""
    from fedsim.cli.compare import run

    with plain_errors():
        run(runs, points, metric, out)
