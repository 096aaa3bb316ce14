"""`fedsim shuffler`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, app, plain_errors


@app.command(rich_help_panel=DEPLOYMENT)
def shuffler(
    config: Annotated[Path, typer.Option(help="The shuffler's file (YAML).")],
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Make the shuffler's keys, print their public halves, and end.")
    ] = False,
    health: Annotated[
        bool,
        typer.Option("--health", help="Ask the running shuffler how it is; exit code 1 if it is not well."),
    ] = False,
) -> None:
    """Run a federation's shuffler: silos' sealed reports come in, and sums that it cannot read go out."""
    from server.shuffler.service import run

    with plain_errors():
        raise typer.Exit(run(config, enrolling=enrol, health=health))
