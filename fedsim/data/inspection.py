"""The first look at a table: its columns, the balance of its target, the sizes of its silos. Not private."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.data.column_values import Cells
from fedsim.data.joined import open_tables
from fedsim.data.reading import DEFAULTS, Reading
from fedsim.data.source import Floats
from fedsim.data.survey import Kind, Survey, no_feature, survey
from fedsim.data.table import Table

NOT_PRIVATE = "Counted in the records without any noise: not private. Keep it where the records are."
_MOST_COMMON = 20
Balance = tuple[dict[str, int] | None, float | None]


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
    """What is to be predicted: records of each class, or the numbers' quantiles."""

    column: str
    missing: int
    classes: dict[str, int] | None
    mean: float | None
    quantiles: dict[str, float] | None


@dataclass(frozen=True)
class Silo:
    """One value of the partition column; of the target's classes the counts, of a number the mean."""

    name: str
    records: int
    classes: dict[str, int] | None
    mean: float | None


@dataclass(frozen=True)
class Silos:
    """A partition column; `without` records name no silo."""

    column: str
    without: int
    sizes: list[Silo]


@dataclass(frozen=True)
class Inspection:
    """See the module."""

    not_private: str
    tables: list[str]
    records: int
    columns: list[Column]
    target: Target | None
    silos: Silos | None


def inspect(
    paths: Path | Sequence[Path],
    target: str | None = None,
    silo: str | None = None,
    reading: Reading = DEFAULTS,
) -> Inspection:
    """Read every record of a table, or of a file for each silo.

    Args:
        paths: CSV or Parquet.
        target: column to predict.
        silo: column that names each record's silo.
        reading: how the files are read.

    Raises:
        InputError: on `path`, `target` or `silo`: what cannot be read, or the column that is not there.
    """
    paths = [paths] if isinstance(paths, Path) else list(paths)
    table, silo = open_tables(paths, "path", reading, silo)
    for field, name in (("target", target), ("silo", silo)):
        if name is not None:
            table.require(name, field)
    found = survey(table, reading)
    return Inspection(
        NOT_PRIVATE,
        [str(path) for path in paths],
        table.num_rows,
        [_column(each) for each in found.values()],
        None if target is None else _target(found[target]),
        None if silo is None else _silos(table, reading, silo, None if target is None else found[target]),
    )


def _column(found: Survey) -> Column:
    numbers = found.numbers if found.kind == "number" and np.isfinite(found.numbers).all() else None
    return Column(
        found.name,
        found.kind,
        found.type,
        found.missing,
        len(found.counts) if numbers is None else len(np.unique(numbers)),
        None if numbers is None else float(numbers.min()),
        None if numbers is None else float(numbers.max()),
        dict(found.counts.most_common(_MOST_COMMON)) if found.kind == "category" else {},
        no_feature(found),
    )


def _target(found: Survey) -> Target:
    if found.looks_like_classes:
        return Target(found.name, found.missing, dict(found.counts.most_common()), None, None)
    if not len(found.numbers):
        return Target(found.name, found.missing, None, None, None)
    quantiles = np.quantile(found.numbers, [0, 0.25, 0.5, 0.75, 1]).tolist()
    named = dict(zip(("minimum", "25 %", "median", "75 %", "maximum"), quantiles, strict=True))
    return Target(found.name, found.missing, None, float(found.numbers.mean()), named)


def _silos(table: Table, reading: Reading, silo: str, target: Survey | None) -> Silos:
    names = _cells(table, silo, reading).names()
    rows = defaultdict[str, list[int]](list)
    for row, name in enumerate(names):
        if name is not None:
            rows[name].append(row)
    balance = _balance(table, reading, target)
    sizes = [Silo(name, len(own), *balance(own)) for name, own in sorted(rows.items())]
    return Silos(silo, names.count(None), sizes)


def _balance(table: Table, reading: Reading, target: Survey | None) -> Callable[[list[int]], Balance]:
    """Of some rows: the counts of the target's classes, or its mean."""
    if target is not None and target.looks_like_classes:
        texts, classes = _cells(table, target.name, reading).names(), list(dict(target.counts.most_common()))
        return lambda rows: (_counts([texts[row] for row in rows], classes), None)
    if target is not None and target.kind == "number":
        numbers = _cells(table, target.name, reading).as_numbers()
        return lambda rows: (None, _mean(numbers[rows]))
    return lambda rows: (None, None)


def _counts(texts: list[str | None], classes: list[str]) -> dict[str, int]:
    found = Counter(texts)
    return {name: found[name] for name in classes}


def _mean(numbers: Floats) -> float | None:
    present = numbers[~np.isnan(numbers)]
    return float(present.mean()) if len(present) else None


def _cells(table: Table, name: str, reading: Reading) -> Cells:
    values = table.read([name])[name]
    return Cells(values, np.arange(len(values)), f"path.{name}", reading, table.place)
