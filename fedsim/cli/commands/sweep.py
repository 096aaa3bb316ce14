"""`fedsim sweep`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import (
    RUNS,
    Address,
    DataDir,
    Overrides,
    Quiet,
    ScenarioFile,
    SummaryAsJson,
    app,
    data_from,
    on_runtime,
    plain_errors,
)


@app.command(rich_help_panel=RUNS)
def sweep(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Sweep directory; finished cells in it are used again. Default runs/NAME."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Ray workers; default one per CPU; 0: in this process.")
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Run a scenario's `sweep` section: all combinations, tuned, over trials; resumes where it stopped."""
    changes = [*(overrides or []), *on_runtime("ray" if address else None, address)]
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        tree = early.swept(scenario, changes)
        from fedsim.cli.output import Output
        from fedsim.cli.sweep import run

        raise typer.Exit(run(tree, out, workers, Output(quiet, as_json)))
