"""`fedsim simulate`: its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import RUNS, Overrides, ScenarioFile, app, plain_errors


@app.command(rich_help_panel=RUNS)
def simulate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME-TIME.")] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inprocess; overrides the scenario.")] = None,
    address: Annotated[
        str | None, typer.Option(help="An existing Ray cluster instead of a local one.")
    ] = None,
) -> None:
    """Train a private model across silos and write the run directory."""
    extra = [f"runtime.name={runtime}"] if runtime is not None else []
    extra += [f"runtime.address={json.dumps(address)}"] if address is not None else []
    with plain_errors():
        from fedsim.cli import early

        early.single(scenario, [*(overrides or []), *extra], out)
        from fedsim.cli.simulate import run

        raise typer.Exit(run(scenario, [*(overrides or []), *extra], out))
