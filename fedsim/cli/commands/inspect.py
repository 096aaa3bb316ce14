"""`fedsim inspect`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import SCENARIOS, app, plain_errors
from fedsim.cli.reading import Decimal, Delimiter, Encoding, Missing, Multiline, reading_of


@app.command(rich_help_panel=SCENARIOS)
def inspect(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE...", help="CSV or Parquet file, or one for each silo.")
    ],
    target: Annotated[str | None, typer.Option(help="Column to predict: shows its balance.")] = None,
    silo: Annotated[str | None, typer.Option(help="Column that names the silo: shows their sizes.")] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    multiline: Multiline = False,
    missing: Missing = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a table holds: columns, missing values, ranges, the target's balance, the silos' sizes.

    It reads the records: run it where they may be read. What it prints is not private.
    """
    with plain_errors():
        from fedsim.cli.inspect import run, spoken

        with spoken():
            run(tables, target, silo, reading_of(delimiter, encoding, decimal, multiline, missing), as_json)
