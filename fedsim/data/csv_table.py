"""A person's own table under a declared schema."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.column_values import Cells
from fedsim.data.dataset import Dataset
from fedsim.data.schema import SCHEMA, CategoryColumn, NumberColumn, SchemaOrFile, ranges, read_schema
from fedsim.data.source import Design, Floats, Ints, Labels, Source, Target, whole_numbers
from fedsim.data.table import open_table

DATA = "scenario.data"


class Csv(Dataset):
    """Your own CSV or Parquet table, with a declared schema: ranges, categories and fill values."""

    name: Literal["csv"] = Field("csv", description="The data set's name.")
    path: Path = Field(description="A CSV file with a header line, or a Parquet file.")
    target: str = Field(description="Column to predict; must be in the schema.")
    silo_column: str | None = Field(None, description="Column that names each record's silo.")
    columns: SchemaOrFile = Field(
        alias="schema",
        description="Column name to {kind: number, lower, upper, scale, fill} or "
        "{kind: category, categories, fill}, for the features and the target; or "
        "the path of a YAML file that holds this mapping.",
    )

    def open(self) -> CsvSource:
        """Reads the header and the schema; InputError where they do not fit together."""
        return CsvSource(self)

    @property
    def not_private(self) -> list[str]:
        """The schema too."""
        schema = "the schema: its ranges, categories and fill values count as public, so take them from "
        return [*super().not_private, schema + "documentation, not from the data"]


class CsvSource(Source):
    """Reads single columns when a partition needs them.

    `design` reads the schema's columns, keeps the cells of the rows it is asked for, and interprets and
    checks these alone.
    """

    def __init__(self, data: Csv) -> None:
        self._schema = read_schema(data.columns)
        self._table = open_table(data.path, f"{DATA}.path")
        self.target, self.silo_column = data.target, data.silo_column
        self.columns = self._table.names
        self._check()
        target = self._schema[self.target]
        self._features = {name: column for name, column in self._schema.items() if name != self.target}
        self.num_features = sum(column.width for column in self._features.values())
        self.num_classes = target.width if isinstance(target, CategoryColumn) else 0
        self._check_parts()

    def _check(self) -> None:
        self._table.require(self.target, f"{DATA}.target")
        if self.silo_column is not None:
            self._table.require(self.silo_column, f"{DATA}.silo_column")
        for name in self._schema:
            self._table.require(name, f"{SCHEMA}.{name}")
        if self.target not in self._schema:
            hint = suggest(self.target, self._schema)
            raise InputError(SCHEMA, self.target, f"the target needs an entry in the schema too; {hint}")

    def _check_parts(self) -> None:
        if self.num_classes == 1:
            expected = "a target needs at least two categories"
            raise InputError(f"{SCHEMA}.{self.target}", self.target, expected)
        if not self._features:
            expected = "declare at least one feature column beside the target"
            raise InputError(SCHEMA, list(self._schema), expected)

    @cached_property
    def num_rows(self) -> int:  # type: ignore[override]
        """Records, counted without reading features."""
        return self._table.num_rows()

    def keys(self, column: str, field: str) -> Floats:
        """Numbers or declared places of categories; undeclared: numbers if all are, else text order."""
        declared = self._schema.get(column)
        if declared is not None:
            return _values(self._cells(column, f"{SCHEMA}.{column}"), declared).astype(np.float64)
        texts = self._cells(column, field).names(column)
        return _numeric(texts) if _all_numeric(texts) else _labels(texts).codes.astype(np.float64)

    def labels(self, column: str, field: str) -> Labels:
        """Declared categories; outside the schema the column's own texts."""
        declared = self._schema.get(column)
        if declared is None:
            return _labels(self._cells(column, field).names(column))
        values = _values(self._cells(column, f"{SCHEMA}.{column}"), declared)
        if isinstance(declared, CategoryColumn):
            return Labels(values.astype(np.int64), declared.categories)
        return whole_numbers(values.astype(np.float64), column, field)

    def _cells(self, column: str, field: str) -> Cells:
        found = self._table.read([column])[column]
        return Cells(found, np.arange(len(found)), field)

    def design(self, rows: Ints) -> Design:
        """Numbers filled and not yet clipped, categories as indicators, in the schema's order."""
        table = self._table.read(self._schema)
        cells = {name: Cells(found.take(rows), rows, f"{SCHEMA}.{name}") for name, found in table.items()}
        matrix = np.zeros((len(rows), self.num_features))
        start = 0
        for name, column in self._features.items():
            _write(matrix[:, start : start + column.width], cells[name], column)
            start += column.width
        target = self._schema[self.target]
        target_range = ranges([target]) if isinstance(target, NumberColumn) else None
        return Design(
            matrix, ranges(self._features.values()), _values(cells[self.target], target), target_range
        )


def _values(cells: Cells, column: NumberColumn | CategoryColumn) -> Target:
    """Numbers, or places of categories."""
    return cells.numbers(column) if isinstance(column, NumberColumn) else cells.codes(column)


def _write(block: Floats, cells: Cells, column: NumberColumn | CategoryColumn) -> None:
    """Fill a column's features, shape (n, width), in place."""
    if isinstance(column, NumberColumn):
        block[:, 0] = cells.numbers(column)
    else:
        block[np.arange(len(block)), cells.codes(column)] = 1.0


def _labels(texts: list[str]) -> Labels:
    numeric = _all_numeric(texts)
    found = sorted(set(texts), key=lambda text: (float(text) if numeric else 0.0, text))
    place = {text: code for code, text in enumerate(found)}
    return Labels(np.array([place[text] for text in texts], dtype=np.int64), tuple(found))


def _all_numeric(texts: list[str]) -> bool:
    try:
        return bool(np.isfinite(_numeric(texts)).all())
    except ValueError:
        return False


def _numeric(texts: list[str]) -> Floats:
    return np.array([float(text) for text in texts])
