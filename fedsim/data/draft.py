"""A first draft of a table's schema, to be corrected by somebody who knows the columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.yaml_file import text
from fedsim.data.column_values import Cells
from fedsim.data.source import Floats
from fedsim.data.table import open_table

WARNING = """\
# Ranges, categories and fill values below were DERIVED FROM THE DATA: using them as they are is NOT PRIVATE.
# Replace them by documented ones that hold for every silo. Delete the columns that are no features (record
# numbers, the silo's name). Use `scale: log` for positive numbers that span several powers of ten.
"""
MOST_CLASSES = 20
MOST_CATEGORIES = 50
Entry = dict[str, Any]


class _LeftOutError(Exception):
    """Why a column does not belong in a schema."""


def draft_schema(path: Path, target: str) -> str:
    """The YAML text of a schema that reads this CSV or Parquet table, the target last.

    Raises:
        InputError: on `path` or `target`: the table cannot be read, or the target not be predicted.
    """
    table = open_table(Path(path), "path")
    table.require(target, "target")
    entries: dict[str, Entry] = {}
    left_out: dict[str, str] = {}
    for name, found in table.read(table.names).items():
        try:
            entries[name] = _entry(Cells(found, np.arange(len(found)), name), is_target=name == target)
        except _LeftOutError as reason:
            left_out[name] = str(reason)
    if target in left_out:
        raise InputError("target", target, f"cannot be predicted: {left_out[target]}")
    entries[target] = entries.pop(target)
    remarks = "".join(f"# {name!r} is left out: {reason}\n" for name, reason in left_out.items())
    body = text(entries, default_flow_style=None, allow_unicode=True, width=110)
    return WARNING + remarks + body


def _entry(cells: Cells, is_target: bool) -> Entry:
    try:
        values = cells.as_numbers()
    except InputError:
        return _category(cells, is_target)
    present = values[~np.isnan(values)]
    if is_target and _looks_like_classes(present):
        return _category(cells, is_target)
    return _number(values, present, is_target)


def _looks_like_classes(present: Floats) -> bool:
    whole = np.array_equal(present, np.round(present))
    return whole and len(np.unique(present)) <= MOST_CLASSES


def _number(values: Floats, present: Floats, is_target: bool) -> Entry:
    if not len(present):
        raise _LeftOutError("it has no values")
    if not np.isfinite(present).all():
        raise _LeftOutError("it has infinite values")
    low, high = float(present.min()), float(present.max())
    if low == high:
        raise _LeftOutError("all its values are equal")
    if not is_target and len(values) == len(set(values.tolist())) == high - low + 1:
        raise _LeftOutError("it looks like a record number")
    entry: Entry = {"kind": "number", "lower": _short(low), "upper": _short(high)}
    if len(present) < len(values):
        _may_fill(is_target)
        entry["fill"] = _short(float(np.median(present)))
    return entry


def _short(value: float) -> float | int:
    """18 rather than 18.0: somebody will edit this file."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _category(cells: Cells, is_target: bool) -> Entry:
    try:
        texts = cells.names()
    except InputError as error:
        raise _LeftOutError(f"its type is {error.value}") from error
    missing = cells.missing()
    seen = Counter(text for text in texts if text is not None)
    if not seen:
        raise _LeftOutError("it has no values")
    if is_target and len(seen) == 1:
        raise _LeftOutError("all its values are equal")
    if len(seen) > MOST_CATEGORIES:
        raise _LeftOutError(f"it has {len(seen)} different texts")
    entry: Entry = {"kind": "category", "categories": sorted(seen, key=_by_number)}
    if missing.any():
        _may_fill(is_target)
        entry["fill"] = seen.most_common(1)[0][0]
    return entry


def _may_fill(is_target: bool) -> None:
    """A made-up feature is a nuisance; a made-up target is a made-up result."""
    if is_target:
        raise _LeftOutError("some records have no value; remove them first")


def _by_number(text: str) -> tuple[float, str]:
    """'2' before '10', numbers before words."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
