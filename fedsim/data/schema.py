"""The declared schema of a table: what each column may hold, known before any record is read.

A schema is part of the privacy claim: ranges, categories and fill values are public constants, the same in
every silo, so preparing one record uses nothing of another. `fill: middle` is public by construction: a
function of the declared range alone.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
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


class Hats(Section):
    """Features of a number, one for each knot: 1 there, 0 at the other knots, and linear in between."""

    hats: int | None = Field(
        None, ge=3, le=64, description="So many knots, evenly spaced on the column's scale."
    )
    knots: Annotated[tuple[float, ...], Field(min_length=3, max_length=64)] | None = Field(
        None, description="The knots themselves, ascending from lower to upper: public, as the range is."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_of_both(cls, given: Any) -> Any:
        one = isinstance(given, Mapping) and (given.get("hats") is None) != (given.get("knots") is None)
        if not one and not isinstance(given, Hats):
            raise ValueError("give one of both, such as {hats: 8} or {knots: [18, 30, 45, 60, 90]}")
        return given

    @model_validator(mode="after")
    def _knots_make_sense(self) -> Hats:
        for low, high in pairwise(self.knots or ()):
            if not low < high:
                raise ValueError(f"knots must ascend, got {low:g} before {high:g}")
        return self


class NumberColumn(_Column):
    """A measured number: clipped to [lower, upper] and mapped to [-1, 1], or to hats."""

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
    encode: Hats | None = Field(
        None, description="Features for a curve instead of a straight line, with scaling: declared."
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
        if knots := self.knots:
            if (knots[0], knots[-1]) != (self.lower, self.upper):
                ends = f"from lower, {self.lower:g}, to upper, {self.upper:g}"
                raise ValueError(f"knots must go {ends}, got {knots[0]:g} to {knots[-1]:g}")
            if not (np.diff(self.on_scale(np.array(knots))) > 0).all():
                raise ValueError("knots are too close to be told apart: give fewer")
        return self

    @property
    def knots(self) -> tuple[float, ...]:
        """Where the column's hats are 1; () without any."""
        if self.encode is None:
            return ()
        spaced = np.geomspace if self.scale == "log" else np.linspace
        return self.encode.knots or tuple(spaced(self.lower, self.upper, self.encode.hats or 0).tolist())

    @property
    def straight(self) -> NumberColumn:
        """The column without hats."""
        return self.model_copy(update={"encode": None})

    def on_scale(self, values: Floats) -> Floats:
        """Numbers, held to the range, on the column's scale."""
        held = np.clip(values, self.lower, self.upper)
        return np.asarray(np.log(held) if self.scale == "log" else held)

    def squared_norms(self, intercept: bool) -> tuple[float, float]:
        """Largest squared norm of its features, and the mean over the range, on its scale."""
        if self.encode is None:
            return super().squared_norms(intercept)
        rows, at = coding(len(self.knots), intercept), self.on_scale(np.array(self.knots))
        ends, between = (rows**2).sum(axis=1), (rows[1:] * rows[:-1]).sum(axis=1)
        pieces = np.diff(at) * (ends[1:] + between + ends[:-1]) / 3  # of squares of what is linear
        return float(ends.max()), float(pieces.sum() / (at[-1] - at[0]))


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


def of_hats(columns: Mapping[str, Input]) -> dict[str, NumberColumn]:
    """The number columns that have an `encode`, by name."""
    numbers = {name: column for name, column in columns.items() if isinstance(column, NumberColumn)}
    return {name: column for name, column in numbers.items() if column.encode is not None}


def levels_of(column: Input) -> Sequence[str]:
    """What `coding` gives features: categories, or the knots of hats; nothing of other numbers."""
    if isinstance(column, CategoryColumn):
        return column.categories
    knots = column.knots if isinstance(column, NumberColumn) else ()
    digits = 6 if len({f"{knot:g}" for knot in knots}) == len(knots) else 17
    return [f"{knot:.{digits}g}" for knot in knots]


def names_of(name: str, column: Input, intercept: bool) -> list[str]:
    """Names of a column's features: the column; or column=category, or column~knot, for each that has one."""
    sign = "=" if isinstance(column, CategoryColumn) else "~"
    levels = levels_of(column)
    return [f"{name}{sign}{level}" for level in levels[intercept:]] if levels else [name]


def ranges_of(columns: Iterable[Input], intercept: bool = False) -> Ranges:
    """Declared ranges of the features that the columns become; NaN where none is declared."""
    rows = [_range(column, intercept) for column in columns for _ in names_of("", column, intercept)]
    lower, upper, log, numeric = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return Ranges(lower, upper, log.astype(bool), numeric.astype(bool))


def _range(column: Input, intercept: bool) -> tuple[float, float, bool, bool]:
    if isinstance(column, MeasuredColumn):
        return np.nan, np.nan, False, column.scaled
    if isinstance(column, CategoryColumn) or column.encode is not None:
        least = -1 / len(levels_of(column)) if intercept else 0.0
        return least, least + 1, False, False
    return column.lower, column.upper, column.scale == "log", True
