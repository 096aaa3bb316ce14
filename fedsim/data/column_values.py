"""A table's cells as numbers, codes and features, by the declared schema; errors name row and cure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import InputError, suggest
from fedsim.data.schema import DEFAULTS, CategoryColumn, Input, MeasuredColumn, NumberColumn, Reading, coding
from fedsim.data.source import NO_LABEL, Floats, Ints

Mask = NDArray[np.bool_]


def counted(row: int) -> str:
    """The row's place in the table, counted from 1."""
    return f"row {row + 1}"


@dataclass(frozen=True, eq=False)
class Cells:
    """Some cells of one column."""

    values: Any  # the cells, a pyarrow.ChunkedArray of length n
    rows: Ints  # their row numbers in the table from 0, shape (n,), for errors
    field: str  # what an error is about
    reading: Reading = DEFAULTS  # missing-value markers and the decimal separator
    place: Callable[[int], str] = counted  # describes a row's place in the table, for errors
    secret: bool = False  # whether no error may hold a category that a record has

    def features(self, column: Input, intercept: bool) -> Floats:
        """The column's features, (n, width)."""
        if isinstance(column, CategoryColumn):
            return coding(len(column.categories), intercept)[self.codes(column)]
        if isinstance(column, NumberColumn) and column.encode is not None:
            return _hats(column, self.numbers(column), intercept)
        return self.numbers(column)[:, None]

    def numbers(self, column: NumberColumn | MeasuredColumn) -> Floats:
        """Numbers with missing ones filled, shape (n,), not yet clipped."""
        values = self.finite()
        missing = np.isnan(values)
        self._require_fill(missing, column.fill)
        return np.where(missing, np.nan if column.fill is None else column.fill, values)

    def codes(self, column: CategoryColumn) -> Ints:
        """Position of each cell in the declared categories, shape (n,), missing ones filled."""
        found = self.places(column)
        self._require_fill(found == NO_LABEL, column.fill)
        fill = NO_LABEL if column.fill is None else column.categories.index(column.fill)
        return np.where(found == NO_LABEL, fill, found)

    def places(self, column: CategoryColumn) -> Ints:
        """Positions as in `codes`, but NO_LABEL where the cell has no value: nothing is filled."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = self.as_texts()
        known = pc.index_in(texts, value_set=pa.array(column.categories, pa.string()))
        found = np.asarray(known.fill_null(NO_LABEL), dtype=np.int64)
        # A category that is declared is one, even if its text looks like a missing value.
        unknown = (found == NO_LABEL) & ~self._marked(texts)
        if unknown.any():
            at = int(unknown.argmax())
            if self.secret:
                count = f"of {len(found):,} records have no declared category"
                hint = f"{count} (the first is {self.place(int(self.rows[at]))}): declare theirs too"
                raise InputError(self.field, int(unknown.sum()), hint)
            text = texts[at].as_py()
            raise self._wrong(at, text, f"not a declared category; {suggest(text, column.categories)}")
        return found

    def names(self) -> list[str | None]:
        """The cells as texts, None where they have no value."""
        texts = self.as_texts()
        return [None if gone else str(t) for t, gone in zip(texts.to_pylist(), self.missing(), strict=True)]

    def missing(self) -> Mask:
        """Mask of the cells without a value, shape (n,); independent of the schema."""
        if self._are_numbers:
            return np.isnan(self._coded(_floats(self.values)))
        return self._marked(self.as_texts())

    def finite(self) -> Floats:
        """Finite numbers, NaN where missing; InputError names the first row that is infinite."""
        values = self.as_numbers()
        if np.isinf(values).any():
            at = int(np.isinf(values).argmax())
            raise self._wrong(at, float(values[at]), "infinite; give a finite number")
        return values

    def as_numbers(self) -> Floats:
        """Numbers, NaN where missing. InputError names the first row that is neither."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_temporal(self.values.type):
            raise InputError(self.field, str(self.values.type), f"the column holds dates or times; {MEND}")
        if self._are_numbers:
            return self._coded(_floats(self.values))
        texts = self.as_texts()
        present = pc.if_else(pa.array(self._marked(texts)), None, texts)
        points = pc.replace_substring(present, ",", ".") if self.reading.decimal == "," else present
        try:
            return self._coded(_floats(points))  # -9.0 is the code -9
        except pa.ArrowInvalid:
            for at, text in enumerate(present.to_pylist()):
                if text is not None and not is_number(text.replace(self.reading.decimal, ".")):
                    raise self._wrong(at, text, _cure(text)) from None
            hint = "the column holds texts that are no plain numbers, such as '1_000'"
            raise InputError(self.field, None, hint) from None

    def ids(self, column: str) -> list[str]:
        """The cells' exact texts, spaces kept; InputError counts those without a value."""
        missing = self.missing()
        if missing.any():
            count = f"{missing.sum():,} of {len(missing):,} records have no value there"
            first = self.place(int(self.rows[missing.argmax()]))
            hint = f"{count} (the first is {first}); complete the records first"
            raise InputError(self.field, column, hint)
        return [str(text) for text in self._exact_texts().to_pylist()]

    def as_texts(self) -> Any:
        """Trimmed texts as one pyarrow array; null where the file has null."""
        import pyarrow.compute as pc

        return pc.utf8_trim_whitespace(self._exact_texts())

    def _exact_texts(self) -> Any:
        """Texts as one pyarrow array; null where the file has null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self.values
        if pa.types.is_dictionary(values.type):  # which declares its categories, as a data frame's may
            values = pc.cast(values, values.type.value_type)
        if pa.types.is_floating(values.type):  # a whole number reads '3', not '3.0'
            return pa.array([_plain(value) for value in values.to_pylist()], pa.string())
        try:
            texts = pc.cast(values, pa.string())
        except pa.ArrowException as error:
            hint = "a column must hold numbers or texts"
            raise InputError(self.field, str(self.values.type), hint) from error
        return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts

    @property
    def _are_numbers(self) -> bool:
        """Whether the file's own type is numeric (Parquet)."""
        import pyarrow as pa

        kind = self.values.type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    def _marked(self, texts: Any) -> Mask:
        """Null, empty, or one of the texts that mean no value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        markers = ["", *(marker.lower() for marker in self.reading.missing)]
        marked = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(markers, pa.string()))
        return np.asarray(pc.or_(marked, pc.is_null(texts)), dtype=bool)

    def _coded(self, values: Floats) -> Floats:
        """NaN for the numbers that mean no value, such as -9."""
        codes = [float(marker) for marker in self.reading.missing if is_number(marker)]
        return np.where(np.isin(values, codes), np.nan, values)

    def _wrong(self, at: int, value: object, hint: str) -> InputError:
        return InputError(self.field, value, f"{self.place(int(self.rows[at]))}: {hint}")

    def _require_fill(self, missing: Mask, fill: object) -> None:
        if fill is None and missing.any():
            count = f"{missing.sum():,} of {len(missing):,} records have none"
            hint = f"no value ({count}); declare a `fill` for the column or complete the row"
            raise self._wrong(int(missing.argmax()), None, hint)


def _floats(values: Any) -> Floats:
    """Numbers, NaN for null; ArrowInvalid where one is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.cast(values, pa.float64(), safe=False), float("nan")), dtype=np.float64)


def _cure(text: str) -> str:
    if is_date(text):
        return f"a date or time; {MEND}"
    if re.fullmatch(r"[-+]?\d+,\d+", text):
        return "not a number; if its comma stands before decimals, say so: `decimal: ','`"
    return "not a number; mend it, declare kind: category, or list it under `missing` if it means no value"


def is_number(text: str) -> bool:
    """Whether Python reads it as a float; `nan` and `inf` count."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: float | None) -> str | None:
    if value is None or np.isnan(value):
        return None
    return str(int(value)) if float(value).is_integer() else repr(value)


MEND = (
    "make a number of them before, such as an age in years or days since a fixed public day, "
    "or leave the column out"
)
_DAY = r"(?:\d{4}(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)(?:\d{4}|\d{2}))"
_TIME = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP][mM])?( ?(Z|[-+]\d{2}:?\d{2}))?"
_WRITTEN = re.compile(rf"({_DAY}([ T]{_TIME})?|{_TIME})")


def is_date(text: str | None) -> bool:
    """Whether a text is a day, a time of day, or both, in figures.

    >>> [is_date(text) for text in ("2024-02-30", "3/4/98", "1.12.2020 23:59", "2020-01-01T10:00Z")]
    [True, True, True, True]
    >>> [is_date(text) for text in ("2024", "1.5", "3-4", "1-2/3", "")]
    [False, False, False, False, False]
    """
    return bool(_WRITTEN.fullmatch(text or ""))


def _hats(column: NumberColumn, values: Floats, intercept: bool) -> Floats:
    """Rows of `coding` at the knots, linear between them, on the column's scale: (n,) to (n, features)."""
    at, where = column.on_scale(np.array(column.knots)), column.on_scale(values)
    piece = np.clip(np.searchsorted(at, where, side="right") - 1, 0, len(at) - 2)
    share = np.clip((where - at[piece]) / (at[piece + 1] - at[piece]), 0.0, 1.0)[:, None]
    rows = coding(len(at), intercept)
    return np.asarray(rows[piece] + share * (rows[piece + 1] - rows[piece]))


def features_of(columns: Mapping[str, Input], cells: Mapping[str, Cells], intercept: bool) -> Floats:
    """Raw features (n, d) in the order of `columns`: numbers filled, not clipped; categories and hats by
    `coding`.
    InputError names the column and row of a wrong cell.
    """
    return np.hstack([cells[name].features(column, intercept) for name, column in columns.items()])
