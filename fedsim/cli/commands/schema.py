"""`fedsim schema`: its options."""

from __future__ import annotations

import json

import typer

from fedsim.cli.app import SCENARIOS, app, plain_errors


@app.command(rich_help_panel=SCENARIOS)
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    with plain_errors():
        from fedsim.scenario.model import Scenario

        typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))
