"""`fedsim silo`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, app, plain_errors
from fedsim.common.plugins import load_none


@app.command(rich_help_panel=DEPLOYMENT)
def silo(
    config: Annotated[Path, typer.Option(help="The silo's file (YAML).")],
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Make the silo's ledger and identity key, print the key, and end.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="After --enrol, go on as the daemon.")] = False,
    health: Annotated[
        bool,
        typer.Option("--health", help="Ask the running daemon how it is; exit code 1 if it is not well."),
    ] = False,
    insecure_simulation: Annotated[
        bool, typer.Option("--insecure-simulation", help="Allow noise from a seed: no privacy; for tests.")
    ] = False,
) -> None:
    """Run one silo's daemon: records, budget and noise stay here, and every message is debited first."""
    with plain_errors():
        load_none()  # before what lists algorithms and data sets is imported
        from silos.config import load_config

        load_config(config)  # before torch is loaded
        from silos.service import run

        code = run(
            config,
            enrol_first=enrol,
            serve=serve,
            health=health,
            insecure_simulation=insecure_simulation,
        )
        raise typer.Exit(code)
