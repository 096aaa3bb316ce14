"""`fedsim simulate`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import (
    RUNS,
    SCENARIO,
    Address,
    DataDir,
    Overrides,
    Quiet,
    SummaryAsJson,
    app,
    data_from,
    fail,
    on_runtime,
    plain_errors,
    scenarios,
)


@app.command(rich_help_panel=RUNS)
def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --resume.", autocompletion=scenarios),
    ] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME-TIME.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with the trials that this interrupted run did not finish."),
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inprocess; overrides the scenario.")] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Train a private model across silos and write the run directory."""
    changes = [*(overrides or []), *on_runtime(runtime, address)]
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        path = early.scenario_of(resume) if scenario is None and resume is not None else scenario
        if path is None:
            fail("error: SCENARIO: name one, or --resume RUN")
        if resume is not None and out is not None:
            fail("error: --out: --resume RUN goes on in RUN: leave --out out")
        loaded = early.single(path, changes, out)
        from fedsim.cli.output import Output
        from fedsim.cli.simulate import run

        raise typer.Exit(run(loaded, out, resume, Output(quiet, as_json)))
