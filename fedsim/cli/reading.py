"""Arguments of the commands that read a table: its files, and the options of `fedsim.data.schema.Reading`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedsim.data.schema import Reading

    GivenReading = Reading
else:
    GivenReading = Any  # loaded once a command needs it

Tables = Annotated[
    list[Path], typer.Argument(metavar="TABLE...", help="CSV or Parquet file, or one for each silo.")
]
SPOKEN = {"path": "TABLE", "table": "TABLE", "target": "--target", "silo": "--silo"}
"""What is typed for each field of an error."""


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `_reading` in place of its argument `reading`, which they make."""
    own, added = inspect.signature(command, eval_str=True), inspect.signature(_reading, eval_str=True)

    @wraps(command)
    def wrapped(**given: Any) -> None:
        options = {name: given.pop(name) for name in added.parameters}
        command(**given, reading=_reading(**options))

    parameters = [each for each in own.parameters.values() if each.name != "reading"]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in added.parameters.values()]
    wrapped.__signature__ = own.replace(parameters=[*parameters, *keywords])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in (*parameters, *keywords)}
    return wrapped


_MARKER = "Missing-value marker; may be repeated; replaces NA, N/A, null, NaN, -, . and ?"


def _reading(
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file; default: detected among , ; tab and |.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of a CSV file, such as latin-1; default: utf-8.")
    ] = None,
    decimal: Annotated[str, typer.Option(help="Decimal separator of a CSV file: . or ,")] = ".",
    multiline: Annotated[
        bool, typer.Option("--multiline", help="A CSV file's cells may hold line breaks.")
    ] = False,
    missing: Annotated[list[str] | None, typer.Option(metavar="TEXT", help=_MARKER)] = None,
) -> GivenReading:
    """The options as a scenario's data section has them; InputError names the option."""
    from fedsim.common.section import arguments
    from fedsim.data.schema import Reading

    own: dict[str, Any] = {"missing": tuple(missing)} if missing else {}
    with arguments("--"):
        return Reading(delimiter=delimiter, encoding=encoding, decimal=decimal, multiline=multiline, **own)
