"""What a table's columns hold, read from its records: for their owner's eyes, and not private."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.column_values import Cells, is_number
from fedsim.data.dates import MEND, is_date, is_temporal
from fedsim.data.reading import Reading
from fedsim.data.source import Floats
from fedsim.data.table import Table

MOST_CATEGORIES = 50
MOST_CLASSES = 20
_MOST_ODD = 0.1  # of a column of numbers are texts that may mean no value

Kind = Literal["number", "category", "text", "date", "mixed", "empty", "other"]


@dataclass(frozen=True, eq=False)
class Survey:
    """One column.

    Attributes:
        name: the column's.
        kind: text: more texts than categories; mixed: numbers, and few texts that may mean no value; empty:
            no value at all; other: neither numbers nor texts, such as lists.
        type: the file's own.
        records: of the table.
        counts: of each text, where there is a value.
        numbers: all values of kind `number`.
    """

    name: str
    kind: Kind
    type: str
    records: int
    counts: Counter[str]
    numbers: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def missing(self) -> int:
        """Records without a value."""
        return 0 if self.kind == "other" else self.records - self.counts.total()

    @property
    def looks_like_classes(self) -> bool:
        """Whether a target like this is a class: few texts, or few whole numbers."""
        whole = np.array_equal(self.numbers, np.round(self.numbers)) and np.isfinite(self.numbers).all()
        few = len(np.unique(self.numbers)) <= MOST_CLASSES
        return bool(whole and few) if self.kind == "number" else self.kind == "category"


def survey(table: Table, reading: Reading) -> dict[str, Survey]:
    """Every column, in the table's order."""
    return {name: _survey(table, name, reading) for name in table.names}


def _survey(table: Table, name: str, reading: Reading) -> Survey:
    values = table.read([name])[name]
    cells = Cells(values, np.arange(len(values)), name, reading, table.place)
    kind = str(values.type)
    try:
        counts = Counter(text for text in cells.names() if text is not None)
    except InputError:
        return Survey(name, "other", kind, len(values), Counter())
    if is_temporal(values.type) and counts:
        return Survey(name, "date", kind, len(values), counts)
    if not counts:
        return Survey(name, "empty", kind, len(values), counts)
    try:
        numbers = cells.as_numbers()
    except InputError:
        return Survey(name, _of_texts(counts), kind, len(values), counts)
    return Survey(name, "number", kind, len(values), counts, numbers[~np.isnan(numbers)])


def _of_texts(counts: Counter[str]) -> Kind:
    if all(map(is_date, counts)):
        return "date"
    if 0 < sum(_odd(counts).values()) <= _MOST_ODD * counts.total():
        return "mixed"
    return "category" if len(counts) <= MOST_CATEGORIES else "text"


def _odd(counts: Counter[str]) -> dict[str, int]:
    return {text: count for text, count in counts.most_common() if not is_number(text)}


def no_feature(column: Survey) -> str | None:
    """Why a column is no feature as it is; None if it is one."""
    return _unusable(column) or ("it looks like a record number" if _counts_records(column) else None)


def no_target(column: Survey) -> str | None:
    """Why a column cannot be predicted as it is; None if it can."""
    if found := _unusable(column):
        return found
    if column.missing:  # a made-up feature is a nuisance; a made-up target is a made-up result
        return f"{column.missing:,} of {column.records:,} records have no value; remove them first"
    return None


def _unusable(column: Survey) -> str | None:
    if column.kind == "other":
        return f"its type is {column.type!r}"
    if column.kind == "empty":
        return "it has no values"
    if column.kind == "date":
        return f"it holds dates or times, such as {next(iter(column.counts))!r}; {MEND}"
    if column.kind == "mixed":
        few = list(_odd(column.counts).items())[:3]
        odd = ", ".join(f"{text!r} in {count:,}" for text, count in few)
        cure = "if that means no value, list it under `missing`"
        return f"it holds numbers, and {odd} of {column.records:,} records: {cure}"
    if column.kind == "text":
        return f"it has {len(column.counts)} different texts"
    if column.kind == "number" and not np.isfinite(column.numbers).all():
        return "it has infinite values"
    is_flat = len(column.counts) == 1 or (column.kind == "number" and np.ptp(column.numbers) == 0)
    return "all its values are equal" if is_flat else None


def _counts_records(column: Survey) -> bool:
    if column.kind != "number" or column.missing:
        return False
    span = column.numbers.max() - column.numbers.min() + 1
    return bool(len(np.unique(column.numbers)) == column.records == span)
