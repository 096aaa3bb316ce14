"""`fedsim schema-from`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import SCENARIOS, app, plain_errors


@app.command("schema-from", rich_help_panel=SCENARIOS)
def schema_from(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
) -> None:
    """Draft a table's schema (ranges, categories) from its data; replace the ranges by documented ones."""
    from fedsim.common.errors import InputError
    from fedsim.data.draft import draft_schema

    here = {"path": "TABLE", "target": "--target"}
    with plain_errors():
        try:
            typer.echo(draft_schema(table, target), nl=False)
        except InputError as error:
            raise InputError(here.get(error.field, error.field), error.value, error.expected) from None
