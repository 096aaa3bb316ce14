"""`fedsim up`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, SCENARIO, Overrides, app, plain_errors


@app.command(rich_help_panel=DEPLOYMENT)
def up(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --resume.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="A new directory; default runs/NAME-TIME.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The SuperLink's port on 127.0.0.1; default any.")
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that did not end in --out.")
    ] = False,
) -> None:
    """Deploy a scenario whole on this machine: a server, and for each silo a daemon and a node; train, and
    leave a folder for each party."""
    with plain_errors():
        from fedsim.cli import early

        loaded = None if scenario is None else early.single(scenario, overrides or [], out)
        from fedsim.cli.up import run

        raise typer.Exit(run(loaded, overrides or [], out, port, resume))
