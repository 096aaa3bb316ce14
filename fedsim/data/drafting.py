"""A draft of a table's schema, read from its records: not private, until its owner has confirmed it.

Its constants are those that one would write: multiples of 1, 2, 2.5 or 5 times a power of ten. Values
beyond a range count as its end, so a range leaves out values that only few records have far out: then all
others use most of [-1, 1]. A schema that is made so is marked `drafted: true` (`fedsim.data.csv_table`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.serialise import to_yaml
from fedsim.data.column_values import is_number
from fedsim.data.inspection import Survey, no_feature, no_silo, no_target, surveyed
from fedsim.data.schema import Reading
from fedsim.data.source import Floats
from fedsim.data.table import Table

HATS = 8
MISSING = "missing"  # the category of records without a value
Entry = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """A drafted schema."""

    schema: dict[str, Entry]  # an entry for each feature, and the target's last
    remarks: dict[str, str]  # what its owner should know of an entry
    left_out: dict[str, str]  # {column: why it is no feature}
    target: Survey  # the column to predict
    sizes: tuple[int, ...]  # records of silos, if a column names them
    curved: tuple[str, ...]  # numbers of many values among the features

    @property
    def with_curves(self) -> Draft:
        """The draft in which numbers of more than `HATS` values enter as so many hats."""
        curves = {name: self.schema[name] | {"encode": {"hats": HATS}} for name in self.curved}
        return replace(self, schema=self.schema | curves)

    @property
    def yaml(self) -> str:
        """The schema as YAML: a line for each column, remarks and columns that are left out as comments."""
        left_out = [f"# {name!r} is left out: {reason}\n" for name, reason in self.left_out.items()]
        lines = [_line(name, entry, self.remarks.get(name)) for name, entry in self.schema.items()]
        return "".join([*left_out, *lines])


def draft(table: Table, target: str, silo: str | None, reading: Reading) -> Draft:
    """Read every record, and draft the schema of features and target; the column `silo` is no feature.

    InputError on `target` or `silo`: it is missing, or no use as such; on `table`: no feature is left.
    """
    columns = surveyed(table, target, silo, reading)
    predicted = columns.pop(target)
    if reason := no_target(predicted):
        raise InputError("target", target, f"cannot be predicted: {reason}")
    reasons = {name: no_feature(column) for name, column in columns.items()}
    if silo is not None:
        if silo == target:
            raise InputError("silo", silo, "is the target: name another column")
        if reason := no_silo(columns[silo]):
            raise InputError("silo", silo, reason)
        reasons[silo] = "it names the silo"
    features = [column for name, column in columns.items() if not reasons[name]]
    if not features:
        raise InputError("table", table.title, f"no column is left to predict {target!r} from")
    entries = {each.name: _entry(each) for each in (*features, predicted)}
    if predicted.looks_like_classes:
        entries[target] = _category(predicted), None
    return Draft(
        {name: entry for name, (entry, _) in entries.items()},
        {name: remark for name, (_, remark) in entries.items() if remark},
        {name: reason for name, reason in reasons.items() if reason},
        predicted,
        () if silo is None else tuple(columns[silo].counts.values()),
        tuple(each.name for each in features if len(np.unique(each.numbers)) > HATS),
    )


def _entry(column: Survey) -> tuple[Entry, str | None]:
    without = f"{column.missing:,} of {column.records:,} records have no value" if column.missing else None
    if column.kind != "number" or set(column.counts) == {"0", "1"}:
        return _category(column), without
    entry, remark = _number(column)
    return entry, "; ".join(filter(None, (without, remark))) or None


def _category(column: Survey) -> Entry:
    # '2' before '10', numbers before words
    found = sorted(column.counts, key=lambda text: (float(text) if is_number(text) else math.inf, text))
    if not column.missing:
        return {"kind": "category", "categories": found}
    return {"kind": "category", "categories": list(dict.fromkeys([*found, MISSING])), "fill": MISSING}


def _number(column: Survey) -> tuple[Entry, str | None]:
    numbers = column.numbers
    if (ends := _log_ends(numbers)) is not None:
        lower, upper = _nice(ends[0], math.floor), _nice(ends[1], math.ceil)
        entry: Entry = {"kind": "number", "lower": lower, "upper": upper, "scale": "log"}
        fill = float(f"{np.median(numbers):.2g}")
    else:
        low, high = _ends(numbers)
        step = _step(high - low, column.whole)
        lower = _multiple(math.floor(low / step + _SAME), step)
        upper = _multiple(math.ceil(high / step - _SAME), step)
        entry = {"kind": "number", "lower": lower, "upper": upper}
        fill = _multiple(round(float(np.median(numbers)) / step), step)
    if column.missing:
        entry["fill"] = _short(min(max(fill, lower), upper))
    zeros = int((numbers == 0).sum()) if ends else 0
    beyond = int(((numbers < lower) | (numbers > upper)).sum()) - zeros
    remarks = {
        f"{zeros:,} zeros, which have no logarithm, count as its lower end": zeros,
        f"{beyond:,} values lie beyond the range and count as its ends": beyond,
    }
    return entry, "; ".join(remark for remark, applies in remarks.items() if applies) or None


_TAILS = (0.005, 0.995)
_FAR = 0.25  # so far beyond the tails' quantiles, of their distance, an extreme value stretches the range


def _ends(numbers: Floats) -> tuple[float, float]:
    """The extremes; on a side where few values lie far out, the quantile instead."""
    least, most = float(numbers.min()), float(numbers.max())
    low, high = map(float, np.quantile(numbers, _TAILS))
    far = _FAR * (high - low)
    if far == 0:
        return least, most
    return low if low - least > far else least, high if most - high > far else most


_WIDE, _SKEWED = 20.0, 0.15


def _log_ends(numbers: Floats) -> tuple[float, float] | None:
    """The ends of a logarithmic scale, where the column has heavy tails; else None.

    They are heavy where no value is negative, the positive ones span more than a factor of 20, and their
    median lies in the lowest 15 % of the linear range. A zero counts as the lower end, which is then halved.
    """
    positive = numbers[numbers > 0]
    if numbers.min() < 0 or not len(positive):
        return None
    low, median, high = map(float, np.quantile(positive, (_TAILS[0], 0.5, _TAILS[1])))
    if low <= 0 or high < _WIDE * low or (median - low) > _SKEWED * (high - low):
        return None
    return (low if len(positive) == len(numbers) else low / 2), high


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_STEPS = 20
_SAME = 1e-9


def _step(span: float, whole: bool) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that divides the span into at most 20 steps.

    >>> _step(73, True), _step(9.4, False), _step(3, True)
    (5.0, 0.5, 1.0)
    """
    power = math.floor(math.log10(span / _MOST_STEPS))
    steps = [float(f"{step}e{power}") for step in _STEPS]
    found = next(step for step in steps if span <= _MOST_STEPS * step * (1 + _SAME))
    if not whole:
        return found
    return max(1.0, 5.0 if found == 2.5 else found)


def _multiple(count: int, step: float) -> float | int:
    """`count` steps, without the digits that binary fractions add.

    >>> _multiple(3, 0.1), _multiple(-4, 2.5), _multiple(7, 0.25)
    (0.3, -10, 1.75)
    """
    return _short(float(f"{count * step:.12g}"))


def _nice(value: float, towards: Any) -> float | int:
    """1, 2 or 5 times a power of ten, below (math.floor) or above (math.ceil) a positive value.

    >>> _nice(57, math.floor), _nice(57, math.ceil), _nice(0.02, math.floor), _nice(7000, math.ceil)
    (50, 100, 0.02, 10000)
    """
    power = math.floor(math.log10(value))
    steps = [float(f"{step}e{power}") for step in (1, 2, 5, 10)]
    if towards is math.floor:
        return _short(max(step for step in steps if step <= value * (1 + _SAME)))
    return _short(min(step for step in steps if step >= value * (1 - _SAME)))


def _short(value: float) -> float | int:
    """18 rather than 18.0, for whoever reads the file."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else value


def _line(name: str, entry: Entry, remark: str | None) -> str:
    text = to_yaml({name: entry}, default_flow_style=True, allow_unicode=True, width=90)
    first, *rest = text.strip()[1:-1].splitlines()  # without the braces of the outer mapping
    comment = [f"# {name!r}: {remark}"] if remark else []
    return "".join(f"{line}\n" for line in [*comment, first, *(f"  {line.strip()}" for line in rest)])


def problem_of(target: Survey) -> str:
    """The name of a generalised linear model (`fedsim.problems`) by which a target like this is predicted:
    logistic for two classes, softmax for more, linear for a number.
    """
    if not target.looks_like_classes:
        return "linear_regression"
    return "logistic_regression" if len(target.counts) == 2 else "softmax_regression"


UNEVEN = 0.3


def is_uneven(target: Survey) -> bool:
    """Whether fewer than 30 % of the records are of the smaller of two classes."""
    if not target.looks_like_classes or len(target.counts) != 2:
        return False
    return min(target.counts.values()) < UNEVEN * target.counts.total()
