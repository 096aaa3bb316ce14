"""What differs between the two worlds of an attack: one unit of the claim, with all its records.

Where a record is the unit, that is a record. A unit of several is put to the test by many aligned records
against one or against as many opposite ones, and with relation `add_remove` against none. A plan for records
can be attacked by several at once too, which it does not promise to hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedsim.data.source import NO_LABEL
from fedsim.protocol.unit import RECORD, Unit

MANY = 10  # records of a unit with many, at least
Record = tuple[np.ndarray, float, int]  # one record: features (f,), target, and group or -1


class Data(NamedTuple):
    """Records of a silo, or of one unit of it. Simulation only."""

    features: np.ndarray  # (n, f), float64
    target: np.ndarray  # (n,), float64
    groups: np.ndarray  # (n,), the code of each record's group, -1 for none
    units: np.ndarray  # (n,), ascending: the number of the unit that each record is of


def num_units(data: Data, unit: Unit) -> int:
    """How many units a plan counts in the records."""
    return len(data.target) if unit == RECORD else len(np.unique(data.units))


def alike(record: Record, records: int) -> Data:
    """One unit: the record so many times."""
    x, y, group = record
    whose = np.zeros(records, dtype=int)
    return Data(np.repeat(x[None, :], records, axis=0), np.full(records, y), whose + group, whose)


def canaries(unit: Unit, records: Iterable[Record], many: int) -> list[Data]:
    """Units to choose a pair from: of `many` of these records, or so many records swapped at once."""
    h = unit.h if isinstance(unit.h, int) else 1
    counts = (many,) if unit == RECORD else (max(many, h), 1)
    found = [alike(record, records) for record in records for records in counts]
    return [nothing(found[0], unit), *found] if unit.one_sided else found


def nothing(like: Data, unit: Unit) -> Data:
    """A unit that counts as zero, in the place of another: nobody, where the claim covers that."""
    return Data(*(part[:0] for part in like)) if unit.one_sided else silent(like)


def silent(data: Data) -> Data:
    """As many records, which all count as zero."""
    return data._replace(
        features=np.full_like(data.features, np.nan),
        target=np.full(len(data.target), np.nan),
        groups=np.full(len(data.target), NO_LABEL),
    )


def related(unit: Unit, found: Sequence[Data]) -> np.ndarray:
    """Which two units may stand in each other's place in neighbouring data sets, (units, units)."""
    sizes = np.array([len(each.target) for each in found])
    if unit.one_sided:
        return np.asarray((sizes[:, None] == 0) != (sizes == 0))
    return np.asarray((sizes[:, None] == sizes) | (unit.relation != "replace_values"))


def replaced(data: Data, canary: Data, place: int) -> Data:
    """A neighbouring data set: the unit of number `place` is another."""
    before, after = data.units < place, data.units > place
    own = canary._replace(units=np.full(len(canary.target), place))
    parts = ((old[before], new, old[after]) for old, new in zip(data, own, strict=True))
    return Data(*map(np.concatenate, parts))
