"""`fedsim audit`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import PRIVACY, SCENARIO, DataDir, Overrides, app, data_from, fail, plain_errors


@app.command(rich_help_panel=PRIVACY)
def audit(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --run.")
    ] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    run: Annotated[
        Path | None, typer.Option(help="A run directory: audit its scenario and put the result on its page.")
    ] = None,
    effort: Annotated[
        float,
        typer.Option(
            min=0.001, max=1000, help="Share of the default work: 0.1 for a first look, 10 for more."
        ),
    ] = 1.0,
    daemons: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Attack two real daemons of a silo over sockets in DIR; started there unless they run.",
        ),
    ] = None,
    silo: Annotated[
        str | None, typer.Option(help="With --daemons: which silo; default the one with the largest epsilon.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack a scenario's transcript and show what that attains of each silo's claim; exit code 1 if a
    claim is broken."""
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        loaded = None if scenario is None else early.single(scenario, overrides or [])
        if daemons is not None:
            from fedsim.cli.daemon_audit import show as show_daemons

            if run is not None:
                fail("error: --daemons attacks by a scenario, --run audits a directory: give one of them")
            raise typer.Exit(show_daemons(loaded, daemons, silo, effort, as_json))
        if silo is not None:
            fail("error: --silo chooses whose daemon is attacked: give --daemons DIR too")
        from fedsim.cli.audit import show

        raise typer.Exit(show(loaded, overrides or [], run, effort, as_json))
