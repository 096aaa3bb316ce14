"""`fedsim privacy`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsim.cli.app import PRIVACY, DataDir, Overrides, ScenarioFile, app, data_from, plain_errors


@app.command(rich_help_panel=PRIVACY)
def privacy(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Price every silo again by dp-accounting (slower).")
    ] = False,
    conversions: Annotated[
        bool, typer.Option("--conversions", help="What it means for groups of records, users, and centrally.")
    ] = False,
) -> None:
    """Show what the run would cost each silo and the noise it would use; reads no feature values."""
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        loaded = early.base(scenario, overrides or [])
        from fedsim.cli.privacy import show

        show(loaded, as_json, verify, conversions)
