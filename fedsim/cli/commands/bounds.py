"""`fedsim bounds`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import PRIVACY, SCENARIO, DataDir, Overrides, app, data_from, fail, plain_errors


@app.command(rich_help_panel=PRIVACY)
def bounds(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --run.")
    ] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory: draw the bounds over what it measured, as figures/bounds."),
    ] = None,
) -> None:
    """Show the theory's upper and lower bounds on the run's excess risk, constants set to one."""
    with plain_errors(), data_from(data_dir):
        if (scenario is None) == (run is None):
            fail("error: SCENARIO: give a scenario file, or --run and a run directory")
        from fedsim.cli import early

        loaded = None if scenario is None else early.single(scenario, overrides or [])
        from fedsim.cli.bounds import show

        show(loaded, overrides or [], as_json, run)
