"""How a table's file is to be read: what separates its cells, how it is encoded, what means no value."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from fedsim.common.section import Section

MARKERS = ("NA", "N/A", "null", "NaN", "-", ".", "?")
"""What a cell without a value says, in any case of letters; an empty one has none in any table."""

DELIMITERS = (",", ";", "\t", "|")


def as_text(value: Any) -> Any:
    """Cells are texts; YAML's yes, null, true and 1.0 are refused, for the table's own text is lost."""
    if value is None or isinstance(value, bool | float):
        raise ValueError(
            f"write this label in quotes: YAML reads it as {value!r}, which is not the table's text"
        )
    return str(value) if isinstance(value, int) else value


def _one_character(value: Any) -> Any:
    text = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else value
    if isinstance(text, str) and (len(text) != 1 or not text.isascii() or text in '"\r\n'):
        raise ValueError("must be one character, such as ';', or the word tab")
    return text


def _known(value: str) -> str:
    try:
        codecs.lookup(value)
    except LookupError:
        raise ValueError("no such encoding; usual ones are utf-8, latin-1, cp1252 and utf-16") from None
    return value


Label = Annotated[str, BeforeValidator(as_text)]


class Reading(Section):
    """Options of CSV and Parquet tables; the defaults read most of them as they are.

    >>> Reading(delimiter="tab").delimiter
    '\\t'
    """

    delimiter: Annotated[str | None, BeforeValidator(_one_character)] = Field(
        None, description="What separates a CSV file's cells; default: found out among , ; tab and |."
    )
    encoding: Annotated[str, AfterValidator(_known)] | None = Field(
        None, description="Of a CSV file; default: utf-8, or what the file's byte order mark says."
    )
    decimal: Literal[".", ","] = Field(".", description="What stands before a CSV file's decimals.")
    multiline: bool = Field(
        False,
        description="Whether a CSV file's cells may hold line breaks; else one is an error, since a quote "
        "that nothing closes takes the records after it into its cell.",
    )
    missing: tuple[Label, ...] = Field(
        MARKERS,
        description="Texts that mean no value, in any case of letters; a list replaces the default. "
        "An empty cell has none in any table, and a declared category that reads so is a category.",
    )


DEFAULTS = Reading()
"""What a scenario that says nothing reads with."""
