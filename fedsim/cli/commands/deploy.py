"""`fedsim deploy`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, Overrides, ScenarioFile, app, plain_errors


@app.command(rich_help_panel=DEPLOYMENT)
def deploy(
    scenario: ScenarioFile,
    federation: Annotated[Path, typer.Option(help="federation.yaml: the silos, as the server knows them.")],
    out: Annotated[Path, typer.Option(help="Run directory, a new one.")],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that did not end there.")
    ] = False,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A SuperLink that runs already; default: one for this run."),
    ] = None,
) -> None:
    """Train a model with real silos, through Flower, and write the run directory."""
    with plain_errors():
        from fedsim.cli import early

        early.single(scenario, overrides or [], out)  # a mistake should not wait for silos
        from fedsim.cli.deploy import run

        raise typer.Exit(run(scenario, overrides or [], federation, out, resume, superlink))
