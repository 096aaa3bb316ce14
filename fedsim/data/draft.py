"""A first draft of a table's schema, to be corrected by a person who knows the columns.

Where records have no value, the draft fills by a constant that is public whatever the records are: the middle
of the declared range, or a category of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.common.errors import InputError
from fedsim.common.serialise import to_yaml
from fedsim.data.inspection import Survey, no_feature, no_target, surveyed
from fedsim.data.schema import DEFAULTS, Reading

WARNING = """\
# Ranges and categories below were DERIVED FROM THE DATA: using them as they are is NOT PRIVATE.
# Replace them by documented ones that hold for every silo. Delete the columns that are no features (record
# numbers, the silo's name). Use `scale: log` for positive numbers that span several powers of ten.
"""
FILLS = """\
# `fill` is what a missing value counts as: the middle of the range, or a category of its own. CONFIRM each,
# or write another public constant, such as a usual value from documentation.
"""
MISSING = "missing"
Entry = dict[str, Any]


def draft_schema(
    paths: Path | Sequence[Path], target: str, reading: Reading = DEFAULTS, silo: str | None = None
) -> str:
    """The YAML text of a schema that reads this table, the target last; arguments as in `inspect`.

    InputError on `path`, `target` or `silo`: the table cannot be read, or the target not be predicted.
    """
    _, silo, columns = surveyed(paths, target, silo, reading)
    predicted = columns.pop(target)
    if reason := no_target(predicted):
        raise InputError("target", target, f"cannot be predicted: {reason}")
    reasons = {name: no_feature(column) for name, column in columns.items()}
    if silo is not None:
        reasons[silo] = "it names the silo"
    features = [column for name, column in columns.items() if not reasons[name]]
    filled = any(column.missing for column in features)
    target_entry = _category(predicted) if predicted.looks_like_classes else _number(predicted)
    entries = [*map(_entry, features), _written(target, target_entry)]
    left_out = [f"# {name!r} is left out: {reason}\n" for name, reason in reasons.items() if reason]
    return WARNING + filled * FILLS + _options(reading) + "".join([*left_out, *entries])


def _options(reading: Reading) -> str:
    """Comments with the reading options that the scenario needs too."""
    given = reading.model_dump(mode="json", exclude_defaults=True)
    lines = to_yaml(given, default_flow_style=None, allow_unicode=True).splitlines() if given else []
    return "".join(f"# The scenario's data section needs: {line}\n" for line in lines)


def _entry(column: Survey) -> str:
    made = _number(column) if column.kind == "number" else _category(column)
    if not column.missing:
        return _written(column.name, made)
    remark = f"# {column.name!r}: {column.missing:,} of {column.records:,} records have no value\n"
    return remark + _written(column.name, made)


def _number(column: Survey) -> Entry:
    low, high = float(column.numbers.min()), float(column.numbers.max())
    entry: Entry = {"kind": "number", "lower": _short(low), "upper": _short(high)}
    return entry | ({"fill": "middle"} if column.missing else {})


def _category(column: Survey) -> Entry:
    found = sorted(column.counts, key=_by_number)
    if not column.missing:
        return {"kind": "category", "categories": found}
    return {"kind": "category", "categories": list(dict.fromkeys([*found, MISSING])), "fill": MISSING}


def _written(name: str, entry: Entry) -> str:
    return to_yaml({name: entry}, default_flow_style=None, allow_unicode=True, width=110)


def _short(value: float) -> float | int:
    """18 rather than 18.0, for the person who edits the file."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _by_number(text: str) -> tuple[float, str]:
    """'2' before '10', numbers before words."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
