"""A table's cells as numbers and codes, by the declared schema; complaints name the row and the cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.schema import CategoryColumn, NumberColumn
from fedsim.data.source import Floats, Ints

MISSING = ("", "?", "nan", "null")  # in any case of letters


@dataclass(frozen=True, eq=False)
class Cells:
    """Some cells of one column.

    Args:
        values: the cells, a pyarrow.ChunkedArray of length n.
        rows: their row numbers in the table from 0, shape (n,), for errors.
        field: what an error is about.
    """

    values: Any
    rows: Ints
    field: str

    def numbers(self, column: NumberColumn) -> Floats:
        """Numbers with missing ones filled, shape (n,), not yet clipped."""
        values = self.as_numbers()
        missing = np.isnan(values)
        if missing.any() and column.fill is None:
            raise self._no_value(missing)
        if np.isinf(values).any():
            at = int(np.isinf(values).argmax())
            raise self._wrong(at, float(values[at]), "infinite; give a finite number")
        return np.where(missing, np.nan if column.fill is None else column.fill, values)

    def codes(self, column: CategoryColumn) -> Ints:
        """Position of each cell in the declared categories, shape (n,), missing ones filled."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = self.as_texts()
        known = pc.index_in(texts, value_set=pa.array(column.categories, pa.string())).fill_null(-1)
        found = np.asarray(known, dtype=np.int64)
        # A category that is declared is one, even if its text looks like a missing value.
        missing = is_missing(texts) & (found < 0)
        if missing.any() and column.fill is None:
            raise self._no_value(missing)
        unknown = (found < 0) & ~missing
        if unknown.any():
            at = int(unknown.argmax())
            text = texts[at].as_py()
            raise self._wrong(at, text, f"not a declared category; {suggest(text, column.categories)}")
        return np.where(missing, 0 if column.fill is None else column.categories.index(column.fill), found)

    def names(self, column: str) -> list[str]:
        """The cells of this column as texts, each of which must have a value."""
        texts = self.as_texts()
        missing = is_missing(texts)
        if missing.any():
            raise self._wrong(int(missing.argmax()), column, "no value; a partition needs one in each row")
        return [str(text) for text in texts.to_pylist()]

    def as_numbers(self) -> Floats:
        """Numbers, NaN where missing. InputError names the first row that is neither."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells, kind = self.values, self.values.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            texts = self.as_texts()
            cells = pc.if_else(pa.array(is_missing(texts)), None, texts)
        try:
            values = pc.cast(cells, pa.float64(), safe=False)
        except pa.ArrowInvalid:
            raise self._not_a_number(cells.to_pylist()) from None
        return np.asarray(pc.fill_null(values, float("nan")), dtype=np.float64)

    def as_texts(self) -> Any:
        """Trimmed texts as one pyarrow array; null where the file has null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_floating(self.values.type):  # a whole number reads '3', not '3.0', whoever wrote it
            return pa.array([_plain(value) for value in self.values.to_pylist()], pa.string())
        try:
            texts = pc.utf8_trim_whitespace(pc.cast(self.values, pa.string()))
        except pa.ArrowException as error:
            expected = "a column must hold numbers or texts"
            raise InputError(self.field, str(self.values.type), expected) from error
        return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts

    def _wrong(self, at: int, value: object, expected: str) -> InputError:
        return InputError(self.field, value, f"row {self.rows[at] + 1}: {expected}")

    def _no_value(self, missing: Any) -> InputError:
        expected = "no value; declare a `fill` for the column or complete the row"
        return self._wrong(int(missing.argmax()), None, expected)

    def _not_a_number(self, texts: list[str | None]) -> InputError:
        for at, text in enumerate(texts):
            try:
                float(text or "nan")
            except ValueError:
                return self._wrong(at, text, "not a number; mend it or declare kind: category")
        expected = "the column holds texts that are no plain numbers, such as '1_000'"
        return InputError(self.field, None, expected)


def is_missing(texts: Any) -> Any:
    """Boolean array (n,): null, empty, '?', 'NaN' or 'null'."""
    import pyarrow as pa
    import pyarrow.compute as pc

    marked = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(MISSING))
    return np.asarray(pc.or_(marked, pc.is_null(texts)), dtype=bool)


def _plain(value: float | None) -> str | None:
    if value is None or np.isnan(value):
        return None
    return str(int(value)) if float(value).is_integer() else repr(value)
