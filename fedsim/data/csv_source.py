"""A person's own table under a declared schema."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data import column_values as cells
from fedsim.data.datasets import Csv
from fedsim.data.schema import CategoryColumn, ColumnConfig, NumberColumn, Schema
from fedsim.data.source import Design, Floats, Labels, Ranges, Target, whole_numbers
from fedsim.data.table import open_table

SCHEMA = "scenario.data.schema"


class CsvSource:
    """Reads the header at once, single columns when a partition needs them, and the rest in `design`."""

    def __init__(self, config: Csv) -> None:
        self._schema = read_schema(config.columns)
        self._table = open_table(config.path)
        self.target = self.label_column = config.target
        self.columns = self._table.names
        self._check(config)

    def _check(self, config: Csv) -> None:
        self._table.require(config.target, "scenario.data.target")
        if config.silo_column is not None:
            self._table.require(config.silo_column, "scenario.data.silo_column")
        for name in self._schema:
            self._table.require(name, f"{SCHEMA}.{name}")
        if config.target not in self._schema:
            hint = suggest(config.target, self._schema)
            raise InputError(SCHEMA, config.target, f"the target needs an entry in the schema too; {hint}")
        if self.num_classes == 1:
            raise InputError(
                f"{SCHEMA}.{config.target}", config.target, "a target needs at least two categories"
            )
        if not self._features:
            raise InputError(
                SCHEMA, list(self._schema), "declare at least one feature column beside the target"
            )

    @property
    def _features(self) -> dict[str, NumberColumn | CategoryColumn]:
        return {name: column for name, column in self._schema.items() if name != self.target}

    @cached_property
    def num_rows(self) -> int:
        """Records, counted without reading features."""
        return self._table.num_rows()

    @property
    def num_features(self) -> int:
        """One per number, one per declared category."""
        return sum(column.width for column in self._features.values())

    @property
    def num_classes(self) -> int:
        """Declared categories of the target, or 0."""
        column = self._schema[self.target]
        return column.width if isinstance(column, CategoryColumn) else 0

    def keys(self, column: str, field: str) -> Floats:
        """Numbers or declared places of categories; undeclared: numbers if all are, else text order."""
        declared, found = self._schema.get(column), self._cells(column)
        if isinstance(declared, NumberColumn):
            return cells.numbers(found, declared, f"{SCHEMA}.{column}")
        if isinstance(declared, CategoryColumn):
            return cells.codes(found, declared, f"{SCHEMA}.{column}").astype(np.float64)
        texts = cells.names(found, column, field)
        return _numeric(texts) if _all_numeric(texts) else _labels(texts).codes.astype(np.float64)

    def labels(self, column: str, field: str) -> Labels:
        """Declared categories; outside the schema the column's own texts."""
        declared, found = self._schema.get(column), self._cells(column)
        if isinstance(declared, NumberColumn):
            return whole_numbers(cells.numbers(found, declared, f"{SCHEMA}.{column}"), column, field)
        if isinstance(declared, CategoryColumn):
            return Labels(cells.codes(found, declared, f"{SCHEMA}.{column}"), declared.categories)
        return _labels(cells.names(found, column, field))

    def _cells(self, column: str) -> Any:
        return self._table.read([column])[column]

    def design(self) -> Design:
        """Numbers filled and not yet clipped, categories as indicators, in the schema's order."""
        table = self._table.read(self._schema)
        features = self._features
        matrix = np.zeros((len(table[self.target]), self.num_features))
        start = 0
        for name, column in features.items():
            _write(matrix[:, start : start + column.width], table[name], column, f"{SCHEMA}.{name}")
            start += column.width
        return Design(matrix, ranges(features.values()), self._read_target(table), self._target_range)

    def _read_target(self, table: dict[str, Any]) -> Target:
        column, field = self._schema[self.target], f"{SCHEMA}.{self.target}"
        if isinstance(column, NumberColumn):
            return cells.numbers(table[self.target], column, field)
        return cells.codes(table[self.target], column, field)

    @property
    def _target_range(self) -> Ranges | None:
        column = self._schema[self.target]
        return ranges([column]) if isinstance(column, NumberColumn) else None


def read_schema(schema: Schema | Path) -> Schema:
    """The schema itself, or the one in a YAML file."""
    if not isinstance(schema, Path):
        return schema
    try:
        content = yaml.safe_load(schema.read_text(encoding="utf-8"))
        return TypeAdapter(dict[str, ColumnConfig]).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        # Behind the column's name the location holds its kind, which is no key of the file.
        place = ".".join([SCHEMA, *map(str, first["loc"][:1] + first["loc"][2:])])
        raise InputError(place, first["input"], f"in {schema}: {first['msg']}") from error
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(SCHEMA, str(schema), f"not a readable YAML file ({reason})") from error


def ranges(columns: Iterable[NumberColumn | CategoryColumn]) -> Ranges:
    """Declared ranges of the features that the columns become."""
    rows = [_range(column) for column in columns for _ in range(column.width)]
    lower, upper, log, numeric = (np.array(values) for values in zip(*rows, strict=True))
    return Ranges(lower, upper, log, numeric)


def _range(column: NumberColumn | CategoryColumn) -> tuple[float, float, bool, bool]:
    if isinstance(column, CategoryColumn):
        return 0.0, 1.0, False, False
    return column.lower, column.upper, column.scale == "log", True


def _write(block: Floats, found: Any, column: NumberColumn | CategoryColumn, field: str) -> None:
    """Fill a column's features, shape (n, width), in place."""
    if isinstance(column, NumberColumn):
        block[:, 0] = cells.numbers(found, column, field)
    else:
        block[np.arange(len(block)), cells.codes(found, column, field)] = 1.0


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
