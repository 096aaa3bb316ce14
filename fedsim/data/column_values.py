"""A table's cells as numbers and codes, by the declared schema; complaints name the row and the cure."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.schema import CategoryColumn, NumberColumn
from fedsim.data.source import Floats, Ints

MISSING = ("", "?", "nan", "null")  # in any case of letters


def numbers(cells: Any, column: NumberColumn, field: str) -> Floats:
    """Numbers with missing ones filled, shape (n,), not yet clipped."""
    values = as_numbers(cells, field)
    missing = np.isnan(values)
    if missing.any() and column.fill is None:
        raise _no_value(int(missing.argmax()), field)
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise InputError(field, float(values[row]), f"row {row + 1}: infinite; give a finite number")
    return np.where(missing, np.nan if column.fill is None else column.fill, values)


def codes(cells: Any, column: CategoryColumn, field: str) -> Ints:
    """Position of each cell in the declared categories, shape (n,), missing ones filled."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = as_texts(cells, field)
    known = pc.index_in(texts, value_set=pa.array(column.categories, pa.string())).fill_null(-1)
    found = np.asarray(known, dtype=np.int64)
    # A category that is declared is one, even if its text looks like a missing value.
    missing = is_missing(texts) & (found < 0)
    if missing.any() and column.fill is None:
        raise _no_value(int(missing.argmax()), field)
    unknown = (found < 0) & ~missing
    if unknown.any():
        row = int(unknown.argmax())
        text = texts[row].as_py()
        raise InputError(
            field, text, f"row {row + 1}: not a declared category; {suggest(text, column.categories)}"
        )
    return np.where(missing, 0 if column.fill is None else column.categories.index(column.fill), found)


def names(cells: Any, column: str, field: str) -> list[str]:
    """The cells as texts, each of which must have a value."""
    texts = as_texts(cells, field)
    missing = is_missing(texts)
    if missing.any():
        row = int(missing.argmax()) + 1
        raise InputError(field, column, f"row {row}: no value; a partition needs one in each row")
    return [str(text) for text in texts.to_pylist()]


def as_numbers(cells: Any, field: str) -> Floats:
    """Numbers, NaN where missing. InputError names the first row that is neither."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = cells.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        texts = as_texts(cells, field)
        cells = pc.if_else(pa.array(is_missing(texts)), None, texts)
    try:
        values = pc.cast(cells, pa.float64(), safe=False)
    except pa.ArrowInvalid:
        raise _not_a_number(cells, field) from None
    return np.asarray(pc.fill_null(values, float("nan")), dtype=np.float64)


def as_texts(cells: Any, field: str) -> Any:
    """Trimmed texts as one pyarrow array; null where the file has null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(
        cells.type
    ):  # a whole number reads '3', not '3.0', whatever the writer made of it
        return pa.array([_plain(value) for value in cells.to_pylist()], pa.string())
    try:
        texts = pc.utf8_trim_whitespace(pc.cast(cells, pa.string()))
    except pa.ArrowException as error:
        raise InputError(field, str(cells.type), "a column must hold numbers or texts") from error
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


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


def _no_value(row: int, field: str) -> InputError:
    return InputError(
        field, None, f"row {row + 1}: no value; declare a `fill` for the column or complete the row"
    )


def _not_a_number(texts: Any, field: str) -> InputError:
    for row, text in enumerate(texts.to_pylist()):
        try:
            float(text or "nan")
        except ValueError:
            return InputError(field, text, f"row {row + 1}: not a number; mend it or declare kind: category")
    return InputError(field, None, "the column holds texts that are no plain numbers, such as '1_000'")
