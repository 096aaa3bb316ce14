"""`fedsim schema-from`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import SCENARIOS, app, plain_errors
from fedsim.cli.reading import Decimal, Delimiter, Encoding, Missing, Multiline, reading_of


@app.command("schema-from", rich_help_panel=SCENARIOS)
def schema_from(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE...", help="CSV or Parquet file, or one for each silo.")
    ],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    silo: Annotated[str | None, typer.Option(help="Column that names the silo: it is no feature.")] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    multiline: Multiline = False,
    missing: Missing = None,
) -> None:
    """Draft a table's schema (ranges, categories) from its data; replace the ranges by documented ones.

    It reads the records: run it where they may be read. A draft is not private.
    """
    with plain_errors():
        from fedsim.cli.inspect import spoken
        from fedsim.data.draft import draft_schema

        with spoken():
            reading = reading_of(delimiter, encoding, decimal, multiline, missing)
            typer.echo(draft_schema(tables, target, reading, silo), nl=False)
