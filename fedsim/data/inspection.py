"""The first look at a table: its columns, its target, and the sizes of its silos.

It is read from the records without noise: for their owner's eyes, and not private.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.column_values import MEND, Cells, is_date, is_number
from fedsim.data.schema import DEFAULTS, Reading
from fedsim.data.source import Floats
from fedsim.data.table import Table, open_tables

NOT_PRIVATE = "Counted in the records without any noise: not private. Keep it where the records are."
_MOST_COMMON = 20
Balance = tuple[dict[str, int] | None, float | None]


MOST_CATEGORIES = 50
MOST_CLASSES = 20
_MOST_ODD = 0.1  # of a column of numbers are texts that may mean no value

Kind = Literal["number", "category", "text", "date", "mixed", "empty", "other"]


@dataclass(frozen=True, eq=False)
class Survey:
    """One column."""

    name: str  # the column's
    # text: more texts than categories; mixed: numbers, and few texts that may mean no value; empty: no
    # value at all; other: neither numbers nor texts, such as lists
    kind: Kind
    type: str  # the file's own
    records: int  # of the table
    counts: Counter[str]  # of each text, where there is a value
    numbers: Floats = dataclasses.field(default_factory=lambda: np.empty(0))  # all values of kind `number`

    @property
    def missing(self) -> int:
        """Records without a value."""
        return 0 if self.kind == "other" else self.records - self.counts.total()

    @property
    def looks_like_classes(self) -> bool:
        """Whether a target like this is a class: few texts, or few whole numbers."""
        if self.kind == "number":
            return self.whole and len(np.unique(self.numbers)) <= MOST_CLASSES
        return self.kind == "category"

    @property
    def whole(self) -> bool:
        """Whether all numbers are finite and whole."""
        return bool(np.isfinite(self.numbers).all() and np.array_equal(self.numbers, np.round(self.numbers)))


@dataclass(frozen=True)
class Column:
    """One column; `lower` and `upper` of numbers, `values` the most common texts with their counts."""

    name: str
    kind: Kind
    type: str
    missing: int
    distinct: int
    lower: float | None
    upper: float | None
    values: dict[str, int]
    remark: str | None


@dataclass(frozen=True)
class Target:
    """The target: records of each class, or quantiles of a number."""

    column: str
    missing: int
    classes: dict[str, int] | None
    mean: float | None
    quantiles: dict[str, float] | None


@dataclass(frozen=True)
class NamedSilo:
    """One value of the partition column; of the target's classes the counts, of a number the mean."""

    name: str
    records: int
    classes: dict[str, int] | None
    mean: float | None


@dataclass(frozen=True)
class NamedSilos:
    """A partition column; `without` records name no silo."""

    column: str
    without: int
    sizes: list[NamedSilo]


@dataclass(frozen=True)
class Inspection:
    """What `inspect` reports of a table."""

    not_private: str
    tables: list[str]
    records: int
    columns: list[Column]
    target: Target | None
    silos: NamedSilos | None


def inspect(
    paths: Path | Sequence[Path],
    target: str | None = None,
    silo: str | None = None,
    reading: Reading = DEFAULTS,
) -> Inspection:
    """Read every record of a table, or of several; InputError on `path`, `target` or `silo`."""
    table, silo = open_tables(paths, "path", reading, silo)
    found = surveyed(table, target, silo, reading)
    return Inspection(
        NOT_PRIVATE,
        [str(path) for path in ([paths] if isinstance(paths, Path) else paths)],
        table.num_rows,
        [_column(each) for each in found.values()],
        None if target is None else _target(found[target]),
        None if silo is None else _silos(table, reading, silo, None if target is None else found[target]),
    )


def _column(found: Survey) -> Column:
    distinct, lower, upper = len(found.counts), None, None
    if found.kind == "number" and np.isfinite(found.numbers).all():
        distinct = len(np.unique(found.numbers))
        lower, upper = float(found.numbers.min()), float(found.numbers.max())
    common = dict(found.counts.most_common(_MOST_COMMON)) if found.kind == "category" else {}
    reason = no_feature(found)
    return Column(found.name, found.kind, found.type, found.missing, distinct, lower, upper, common, reason)


def _target(found: Survey) -> Target:
    if found.looks_like_classes or not len(found.numbers):
        classes = dict(found.counts.most_common()) if found.looks_like_classes else None
        return Target(found.name, found.missing, classes, None, None)
    quantiles = np.quantile(found.numbers, [0, 0.25, 0.5, 0.75, 1]).tolist()
    named = dict(zip(("minimum", "25 %", "median", "75 %", "maximum"), quantiles, strict=True))
    return Target(found.name, found.missing, None, float(found.numbers.mean()), named)


def _silos(table: Table, reading: Reading, silo: str, target: Survey | None) -> NamedSilos:
    names = _cells(table, silo, reading).names()
    rows = defaultdict[str, list[int]](list)
    for row, name in enumerate(names):
        if name is not None:
            rows[name].append(row)
    balance = _balance(table, reading, target)
    sizes = [NamedSilo(name, len(own), *balance(own)) for name, own in sorted(rows.items())]
    return NamedSilos(silo, names.count(None), sizes)


def _balance(table: Table, reading: Reading, target: Survey | None) -> Callable[[list[int]], Balance]:
    """A function from row numbers to counts of the target's classes, or to its mean."""
    if target is not None and target.looks_like_classes:
        texts = _cells(table, target.name, reading).names()
        classes = [name for name, _ in target.counts.most_common()]

        def classes_of(rows: list[int]) -> Balance:
            counts = Counter(texts[row] for row in rows)
            return {name: counts[name] for name in classes}, None

        return classes_of
    if target is not None and target.kind == "number":
        numbers = _cells(table, target.name, reading).as_numbers()
        return lambda rows: (None, _mean(numbers[rows]))
    return lambda rows: (None, None)


def _mean(numbers: Floats) -> float | None:
    present = numbers[~np.isnan(numbers)]
    return float(present.mean()) if len(present) else None


def _cells(table: Table, name: str, reading: Reading) -> Cells:
    values = table.read([name])[name]
    return Cells(values, np.arange(len(values)), f"path.{name}", reading, table.place)


def surveyed(table: Table, target: str | None, silo: str | None, reading: Reading) -> dict[str, Survey]:
    """Every column in the table's order; InputError on `target` or `silo` if it is missing."""
    for field, name in (("target", target), ("silo", silo)):
        if name is not None:
            table.require(name, field)
    return {name: survey(table, name, reading) for name in table.names}


def survey(table: Table, name: str, reading: Reading) -> Survey:
    """One column, all of it read."""
    import pyarrow as pa

    cells = _cells(table, name, reading)
    values, counts = cells.values, Counter[str]()
    try:
        counts.update(text for text in cells.names() if text is not None)
    except InputError:
        found: Kind = "other"
    else:
        found = "date" if pa.types.is_temporal(values.type) else "number"
        if not counts:
            found = "empty"
        elif pa.types.is_dictionary(values.type):
            for each in values.unify_dictionaries().chunk(0).dictionary.cast("string").to_pylist():
                counts[each] += 0  # a category that no record has is one
            found = "category" if len(counts) <= MOST_CATEGORIES else "text"
    if found == "number":
        try:
            numbers = cells.as_numbers()
            return Survey(name, found, str(values.type), len(values), counts, numbers[~np.isnan(numbers)])
        except InputError:
            if all(map(is_date, counts)):
                found = "date"
            elif 0 < sum(_odd(counts).values()) <= _MOST_ODD * counts.total():
                found = "mixed"
            else:
                found = "category" if len(counts) <= MOST_CATEGORIES else "text"
    return Survey(name, found, str(values.type), len(values), counts)


def _odd(counts: Counter[str]) -> dict[str, int]:
    return {text: count for text, count in counts.most_common() if not is_number(text)}


def no_feature(column: Survey) -> str | None:
    """Why a column is no feature as it is; None if it is one."""
    if found := _unusable(column):
        return found
    if _numbers_records(column):
        return "it looks like a record number: no value stands twice"
    if column.kind == "category" and len(column.counts) == column.records > MOST_CLASSES:
        return "it looks like a name: no text stands twice"
    return None


def no_target(column: Survey) -> str | None:
    """Why a column cannot be predicted as it is; None if it can."""
    if found := _unusable(column):
        return found
    if column.missing:  # a made-up feature is a nuisance; a made-up target is a made-up result
        return f"{column.missing:,} of {column.records:,} records have no value; remove them first"
    return None


def no_silo(column: Survey) -> str | None:
    """Why a column does not say whose record each is; None if it does."""
    if column.missing:
        count = f"{column.missing:,} of {column.records:,} records"
        return f"{count} have no value there: complete them, or remove them first"
    if len(column.counts) < 2:
        return "names one silo: a federation needs two, so name another column"
    return None


def _unusable(column: Survey) -> str | None:
    if column.kind == "other":
        return f"its type is {column.type!r}"
    if column.kind == "empty":
        return "it has no values"
    if column.kind == "date":
        return f"it holds dates or times, such as {next(iter(column.counts))!r}; {MEND}"
    if column.kind == "mixed":
        odd = ", ".join(f"{text!r} in {count:,}" for text, count in list(_odd(column.counts).items())[:3])
        cure = "if that means no value, list it under `missing`"
        return f"it holds numbers, and {odd} of {column.records:,} records: {cure}"
    if column.kind == "text":
        return f"it has {len(column.counts)} different texts"
    if column.kind == "number" and not np.isfinite(column.numbers).all():
        return "it has infinite values"
    is_flat = len(+column.counts) == 1 or (column.kind == "number" and np.ptp(column.numbers) == 0)
    return "all its values are equal" if is_flat else None


_NAMED_ID = re.compile(r"(?i:(^|.*[\W_])(id|key|index|no|nr|number))|.*[a-z]I[Dd]")


def _numbers_records(column: Survey) -> bool:
    """Whether whole numbers that differ in all n records are identifiers: they count, or the name says so, or
    their range is so narrow that n measurements in it would repeat some value.
    """
    if column.kind != "number" or column.missing or not column.whole:
        return False
    if len(np.unique(column.numbers)) < column.records:
        return False
    span = np.ptp(column.numbers) + 1
    expected_repeats = column.records**2 / 2 / span
    return bool(span == column.records or expected_repeats > _SURE or _NAMED_ID.fullmatch(column.name))


_SURE = 5.0  # expected repeats with which no repeat at all has a chance below exp(-5) in uniform measurements
