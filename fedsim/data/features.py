"""A table's columns as raw features, by what is declared of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.common.suggest import suggest
from fedsim.data.column_values import Cells
from fedsim.data.reading import DEFAULTS, Reading
from fedsim.data.schema import CategoryColumn, NumberColumn
from fedsim.data.source import Floats, Ranges


class MeasuredColumn(Section):
    """A number whose range nobody has declared."""

    kind: Literal["measured"] = Field("measured", description="The column holds numbers.")
    scaled: bool = Field(True, description="Whether statistics scale it; false: it stays as it is.")
    fill: None = None

    @property
    def width(self) -> int:
        """Features it becomes."""
        return 1


Input = Annotated[NumberColumn | CategoryColumn | MeasuredColumn, Discriminator("kind")]


def read_features(
    columns: Mapping[str, Input], table: Mapping[str, Any], field: str, reading: Reading = DEFAULTS
) -> Floats:
    """Raw features (n, d): numbers filled and not yet clipped, categories as indicators.

    Args:
        columns: what features are made of, in their order.
        table: pyarrow.ChunkedArray of length n by name; more than those do no harm.
        field: what an error is about.
        reading: says what means no value.

    Raises:
        InputError: names the column and the row that are wrong, and what would be right.
    """
    for name in columns:
        if name not in table:
            expected = f"there is no such column, and the model needs it; {suggest(name, table)}"
            raise InputError(field, name, expected)
    rows = np.arange(len(table[next(iter(columns))]))
    return features_of(
        columns, {name: Cells(table[name], rows, f"{field}.{name}", reading) for name in columns}
    )


def features_of(columns: Mapping[str, Input], cells: Mapping[str, Cells]) -> Floats:
    """As `read_features`, of cells."""
    return np.hstack([_block(cells[name], column) for name, column in columns.items()])


def _block(cells: Cells, column: Input) -> Floats:
    """A column's features, (n, width)."""
    if isinstance(column, CategoryColumn):
        codes = cells.codes(column)
        block = np.zeros((len(codes), column.width))
        block[np.arange(len(codes)), codes] = 1.0
        return block
    return cells.numbers(column)[:, None]  # type: ignore[arg-type]  # of which it asks the fill


def names_of(name: str, column: Input) -> list[str]:
    """Names of a column's features: its own, with each category's behind it."""
    if isinstance(column, CategoryColumn):
        return [f"{name}={category}" for category in column.categories]
    return [name]


def ranges_of(columns: Iterable[Input]) -> Ranges:
    """Declared ranges of the features that the columns become; NaN where none is declared."""
    rows = [_range(column) for column in columns for _ in range(column.width)]
    lower, upper, log, numeric = (np.array(values) for values in zip(*rows, strict=True))
    return Ranges(lower, upper, log, numeric)


def _range(column: Input) -> tuple[float, float, bool, bool]:
    if isinstance(column, CategoryColumn):
        return 0.0, 1.0, False, False
    if isinstance(column, MeasuredColumn):
        return np.nan, np.nan, False, column.scaled
    return column.lower, column.upper, column.scale == "log", True
