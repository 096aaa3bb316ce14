"""A table's columns as raw features, by the declared schema alone: no target and no silo is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.column_values import Cells
from fedsim.data.reading import DEFAULTS, Reading
from fedsim.data.schema import CategoryColumn, NumberColumn, Schema, ranges
from fedsim.data.source import Floats, Ints, Ranges, Target
from fedsim.data.table import FrameTable, Table, open_table

if TYPE_CHECKING:
    import pandas as pd


def read_design(
    columns: Schema,
    table: pd.DataFrame | str | os.PathLike[str],
    reading: Reading = DEFAULTS,
    field: str = "table",
) -> tuple[Floats, Ranges]:
    """Features of every record, in the table's order and before scaling, and their declared ranges.

    Args:
        columns: of the features only, in their order; other columns of the table are not read.
        table: a frame, or the path of a CSV or Parquet file.
        reading: how a file is read, and what means no value.
        field: what an error is about.

    Returns:
        Features (n, d), missing values filled and categories as indicators; ranges of shape (d,).

    Raises:
        InputError: names the column and the row that are wrong, and what would be right.
    """
    opened = _open(table, reading, field)
    for name in columns:
        opened.require(name, field)
    cells = read_cells(opened, columns, reading, np.arange(opened.num_rows), field)
    return features_of(columns, cells), ranges(columns.values())


def _open(table: pd.DataFrame | str | os.PathLike[str], reading: Reading, field: str) -> Table:
    if isinstance(table, str | os.PathLike):
        return open_table(Path(table), field, reading)
    if not hasattr(table, "iloc"):
        raise InputError(field, type(table).__name__, "must be a pandas.DataFrame or the path of a table")
    return FrameTable(table, field)


def read_cells(
    table: Table, columns: Iterable[str], reading: Reading, rows: Ints, field: str
) -> dict[str, Cells]:
    """The named columns' cells of these rows; an error is about `field.column`."""
    found = table.read(list(columns))
    return {
        name: Cells(values.take(rows), rows, f"{field}.{name}", reading, table.place)
        for name, values in found.items()
    }


def features_of(columns: Schema, cells: Mapping[str, Cells]) -> Floats:
    """Raw features (n, d): numbers filled and not yet clipped, categories as indicators."""
    return np.hstack([_block(cells[name], column) for name, column in columns.items()])


def _block(cells: Cells, column: NumberColumn | CategoryColumn) -> Floats:
    """A column's features, (n, width)."""
    if isinstance(column, NumberColumn):
        return cells.numbers(column)[:, None]
    return np.eye(column.width, dtype=np.float64)[cells.codes(column)]


def values_of(cells: Cells, column: NumberColumn | CategoryColumn) -> Target:
    """Numbers, or places of categories; missing ones filled."""
    return cells.numbers(column) if isinstance(column, NumberColumn) else cells.codes(column)
