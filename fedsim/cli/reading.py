"""Options of every command that reads a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedsim.data.reading import Reading

Delimiter = Annotated[
    str | None,
    typer.Option(help="What separates a CSV file's cells; default: found out among , ; tab and |."),
]
Encoding = Annotated[str | None, typer.Option(help="Of a CSV file, such as latin-1; default: utf-8.")]
Decimal = Annotated[str, typer.Option(help="What stands before a CSV file's decimals: . or ,")]
Multiline = Annotated[bool, typer.Option("--multiline", help="A CSV file's cells may hold line breaks.")]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="A text that means no value; may be repeated; instead of NA, N/A, null, NaN, -, . and ?",
    ),
]


def reading_of(
    delimiter: str | None, encoding: str | None, decimal: str, multiline: bool, missing: list[str] | None
) -> Reading:
    """The options as a scenario's data section has them; InputError names the option."""
    from pydantic import ValidationError

    from fedsim.common.errors import InputError
    from fedsim.data.reading import Reading

    given: dict[str, Any] = {"delimiter": delimiter, "encoding": encoding, "decimal": decimal}
    given["multiline"] = multiline
    try:
        return Reading(**given, **({"missing": tuple(missing)} if missing else {}))
    except ValidationError as error:
        first = error.errors()[0]
        expected = first["msg"].removeprefix("Value error, ")
        raise InputError(f"--{first['loc'][0]}", first["input"], expected) from None
