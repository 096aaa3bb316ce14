"""What differs between the two worlds of an attack: one unit of the claim, with all its records.

Where a record is the unit, that is a record. A unit of several is put to the test by many aligned records
against one or against as many opposite ones, and with relation `add_remove` against none. A plan for records
can be attacked by several at once too, which it does not promise to hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedsim.data.source import NO_LABEL
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD, Unit

MANY = 10  # records of a unit with many, at least
Record = tuple[np.ndarray, float, int]  # one record: features (f,), target, and group or -1


def whose(rows: Rows) -> np.ndarray:
    """(n,), ascending: the number of the unit that each record is of, which is known here."""
    assert rows.owners is not None
    return rows.owners


def record_of(rows: Rows, place: int) -> Record:
    """One of the records, with its group, which is known here."""
    assert rows.groups is not None
    return rows.features[place], float(rows.target[place]), int(rows.groups[place])


def num_units(data: Rows, unit: Unit) -> int:
    """How many units a plan counts in the records."""
    return len(data.target) if unit == RECORD else len(np.unique(whose(data)))


def alike(record: Record, records: int) -> Rows:
    """One unit: the record so many times."""
    x, y, group = record
    whose = np.zeros(records, dtype=int)
    return Rows(np.repeat(x[None, :], records, axis=0), np.full(records, y), whose + group, whose)


def canaries(unit: Unit, records: Iterable[Record], many: int) -> list[Rows]:
    """Units to choose a pair from: of `many` of these records, or so many records swapped at once."""
    h = unit.h if isinstance(unit.h, int) else 1
    counts = (many,) if unit == RECORD else (max(many, h), 1)
    found = [alike(record, records) for record in records for records in counts]
    return [nothing(found[0], unit), *found] if unit.one_sided else found


def nothing(like: Rows, unit: Unit) -> Rows:
    """A unit that counts as zero, in the place of another: nobody, where the claim covers that."""
    return like.of(slice(0)) if unit.one_sided else silent(like)


def silent(data: Rows) -> Rows:
    """As many records, which all count as zero."""
    return data._replace(
        features=np.full_like(data.features, np.nan),
        target=np.full(len(data.target), np.nan),
        groups=np.full(len(data.target), NO_LABEL),
    )


def related(unit: Unit, found: Sequence[Rows]) -> np.ndarray:
    """Which two units may stand in each other's place in neighbouring data sets, (units, units)."""
    sizes = np.array([len(each.target) for each in found])
    if unit.one_sided:
        return np.asarray((sizes[:, None] == 0) != (sizes == 0))
    return np.asarray((sizes[:, None] == sizes) | (unit.relation != "replace_values"))


def replaced(data: Rows, canary: Rows, place: int) -> Rows:
    """A neighbouring data set: the unit of number `place` is another."""
    before, after = whose(data) < place, whose(data) > place
    own = canary._replace(owners=np.full(len(canary.target), place))
    return Rows.joined([data.of(before), own, data.of(after)])
