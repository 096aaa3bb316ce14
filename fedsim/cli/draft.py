"""`fedsim schema-from`: a draft of a table's schema, its errors in terms of the command line."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsim.common.errors import InputError
from fedsim.data.draft import draft_schema

_HERE = {"path": "TABLE", "target": "--target"}


def show(table: Path, target: str) -> None:
    """Print the draft.

    Raises:
        InputError: the table cannot be read, or the target not be predicted.
    """
    try:
        typer.echo(draft_schema(table, target), nl=False)
    except InputError as error:
        raise InputError(_HERE.get(error.field, error.field), error.value, error.expected) from None
