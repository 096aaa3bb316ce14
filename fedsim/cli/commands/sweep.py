"""`fedsim sweep`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import RUNS, Overrides, ScenarioFile, app, plain_errors


@app.command(rich_help_panel=RUNS)
def sweep(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Sweep directory; finished cells in it are used again. Default runs/NAME."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Ray workers; default one per CPU; 0: in this process.")
    ] = None,
) -> None:
    """Run a scenario's `sweep` section: all combinations, tuned, over trials; resumes where it stopped."""
    with plain_errors():
        from fedsim.cli import early

        early.swept(scenario, overrides or [])
        from fedsim.cli.sweep import run

        raise typer.Exit(run(scenario, overrides or [], out, workers))
