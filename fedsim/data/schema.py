"""The declared schema of a table: what each column may hold, known before any record is read.

A schema is part of the privacy claim: ranges, categories and fill values are public constants, the same in
every silo, so preparing one record uses nothing of another. `fill: middle` is public by construction: a
function of the declared range alone.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fedsim.common.errors import InputError, suggest
from fedsim.common.section import Section
from fedsim.common.serialise import mapping
from fedsim.data.source import Floats, Ranges

MARKERS = ("NA", "N/A", "null", "NaN", "-", ".", "?")
"""Default missing-value markers, case-insensitive; an empty cell is missing in any table."""

DELIMITERS = (",", ";", "\t", "|")


def as_text(value: Any) -> Any:
    """Refuse YAML's yes, null, true and 1.0 as labels: YAML loses the text that the table has."""
    if value is None or isinstance(value, bool | float):
        read = f"YAML reads it as {value!r}, which is not the table's text"
        raise ValueError(f"write this label in quotes: {read}")
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
        None, description="Delimiter of a CSV file; default: detected among , ; tab and |."
    )
    encoding: Annotated[str, AfterValidator(_known)] | None = Field(
        None, description="Encoding of a CSV file; default: utf-8, or by the file's byte order mark."
    )
    decimal: Literal[".", ","] = Field(".", description="Decimal separator of a CSV file.")
    multiline: bool = Field(
        False,
        description="Whether a CSV file's cells may hold line breaks; else one is an error, since a quote "
        "that nothing closes takes the records after it into its cell.",
    )
    missing: tuple[Label, ...] = Field(
        MARKERS,
        description="Missing-value markers, case-insensitive; a list replaces the default. "
        "An empty cell is missing in any table; a declared category of this text is a category.",
    )


DEFAULTS = Reading()  # the reading options of a scenario that gives none


SCHEMA = "scenario.data.schema"
SILO = "silo"  # what the column of silos' names is called where several files have none


def coding(levels: int, intercept: bool) -> Floats:
    """Features of each of w levels, a row each: all 0/1 indicators; beside an intercept those of the second
    to the last, each less 1/w, as the first's is 1 less the others and would cost noise alone.

    >>> coding(2, intercept=True).tolist(), coding(2, intercept=False).tolist()
    ([[-0.5], [0.5]], [[1.0, 0.0], [0.0, 1.0]])
    """
    return np.eye(levels)[:, 1:] - 1 / levels if intercept else np.eye(levels)


class _Column(Section):
    def squared_norms(self, intercept: bool) -> tuple[float, float]:
        """Largest squared norm of its features on their declared scale, and the mean over the range."""
        return 1.0, 1 / 3


class NumberColumn(_Column):
    """A measured number: clipped to [lower, upper] and mapped to [-1, 1]."""

    kind: Literal["number"] = Field(description="The column holds numbers.")
    lower: float = Field(description="Smallest value, from documentation and not from the records.")
    upper: float = Field(description="Largest value, from documentation and not from the records.")
    scale: Literal["linear", "log"] = Field(
        "linear", description="Map the value (linear) or its logarithm (log, needs lower > 0) to [-1, 1]."
    )
    fill: float | None = Field(
        None,
        description="What a missing value counts as: a number, or middle, that of the range on its scale; "
        "without it, one is an error.",
        json_schema_extra={"anyOf": [{"type": "number"}, {"const": "middle"}, {"type": "null"}]},
    )

    @model_validator(mode="before")
    @classmethod
    def _find_middle(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("fill") != "middle":
            return given
        try:
            ends = float(given["lower"]), float(given["upper"])
            return {**given, "fill": _middle(*ends, given.get("scale") == "log")}
        except (KeyError, TypeError, ValueError):
            return {**given, "fill": None}  # the error names the range

    @model_validator(mode="after")
    def _range_makes_sense(self) -> NumberColumn:
        if not self.lower < self.upper or math.isinf(self.upper - self.lower):
            raise ValueError(f"lower must be below upper, got [{self.lower}, {self.upper}]")
        if self.scale == "log" and self.lower <= 0:
            raise ValueError(f"scale: log needs lower > 0, got {self.lower}")
        if self.fill is not None and not self.lower <= self.fill <= self.upper:
            raise ValueError(f"fill must lie in [{self.lower}, {self.upper}], got {self.fill}")
        return self


def _middle(lower: float, upper: float, log: bool) -> float:
    """The value that is mapped to 0.

    >>> _middle(20, 80, log=False), _middle(1, 100, log=True)
    (50.0, 10.0)
    """
    return math.sqrt(lower) * math.sqrt(upper) if log else lower / 2 + upper / 2


class CategoryColumn(_Column):
    """One of the declared categories: its features are of `coding`."""

    kind: Literal["category"] = Field(description="The column holds one of a fixed set of texts.")
    categories: tuple[Label, ...] = Field(
        description="Every text the column may hold, in the order of the codes."
    )
    fill: Label | None = Field(None, description="Replaces a missing value; without it, one is an error.")

    @model_validator(mode="after")
    def _categories_make_sense(self) -> CategoryColumn:
        if not self.categories or len(set(self.categories)) < len(self.categories):
            raise ValueError("categories must be at least one text, each named once")
        if self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"fill must be one of the categories; {suggest(self.fill, self.categories)}")
        return self

    def squared_norms(self, intercept: bool) -> tuple[float, float]:
        """Largest squared norm of its features, and the mean over the categories."""
        w = len(self.categories)
        return (max(0.0, 1 - 1 / w - 1 / w**2), (1 - 1 / w) ** 2) if intercept else (1.0, 1.0)


class MeasuredColumn(_Column):
    """A number without a declared range."""

    kind: Literal["measured"] = Field("measured", description="The column holds numbers.")
    scaled: bool = Field(True, description="Whether statistics scale it; false: it stays as it is.")
    fill: None = None


Column = Annotated[NumberColumn | CategoryColumn, Discriminator("kind")]
Input = Annotated[NumberColumn | CategoryColumn | MeasuredColumn, Discriminator("kind")]
Schema = Mapping[str, NumberColumn | CategoryColumn]
SchemaOrFile = Annotated[
    Annotated[dict[str, Column], Tag("inline")] | Annotated[Path, Tag("file")],
    Discriminator(lambda value: "inline" if isinstance(value, Mapping) else "file"),
]


def read_schema(schema: Schema | Path) -> Schema:
    """The schema itself, or the one in a YAML file; InputError names a wrong entry of the file."""
    if not isinstance(schema, Path):
        return schema
    try:
        return TypeAdapter(dict[str, Column]).validate_python(mapping(schema, SCHEMA, "age:"))
    except ValidationError as error:
        first = error.errors()[0]
        # Behind the column's name the location holds its kind, which is no key of the file.
        place = ".".join([SCHEMA, *map(str, first["loc"][:1] + first["loc"][2:])])
        raise InputError(place, first["input"], f"in {schema}: {first['msg']}") from error


def names_of(name: str, column: Input, intercept: bool) -> list[str]:
    """Names of a column's features: the column, or column=category for each category that has one."""
    if isinstance(column, CategoryColumn):
        return [f"{name}={category}" for category in column.categories[intercept:]]
    return [name]


def ranges_of(columns: Iterable[Input], intercept: bool = False) -> Ranges:
    """Declared ranges of the features that the columns become; NaN where none is declared."""
    rows = [_range(column, intercept) for column in columns for _ in names_of("", column, intercept)]
    lower, upper, log, numeric = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return Ranges(lower, upper, log.astype(bool), numeric.astype(bool))


def _range(column: Input, intercept: bool) -> tuple[float, float, bool, bool]:
    if isinstance(column, CategoryColumn):
        least = -1 / len(column.categories) if intercept else 0.0
        return least, least + 1, False, False
    if isinstance(column, MeasuredColumn):
        return np.nan, np.nan, False, column.scaled
    return column.lower, column.upper, column.scale == "log", True
