"""Whole persons dealt out in the place of records.

Guarantee with unit `person`: all of a person's records in a silo are on one side of every division that is
drawn there (training and test, the halves of a reserve and the rest), and no partition gives a person's
records to two silos. For partition, reserve and split divide persons, who are numbered as records are, and
only then does each person stand for the own records. A data set is the list of its persons, in the order of
their first records: a neighbour has another in one's place, so that every other person stays where it is.

A person is one id in one silo: where the data name the silos, an id in two of them is two persons, as between
real silos, which compare no ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.by_label import BY, NaturalIdPartition
from fedsim.data.partition import Assignment, Partition
from fedsim.data.source import ALIKE, Design, Floats, Ints, Labels, Source, alike, numbered, require_labels
from fedsim.protocol.unit import Record, Unit

FIELD = "scenario.data.person_column"


def dealt(source: Source, partition: Partition, unit: Unit) -> Source:
    """What a partition divides: the records, or the persons; InputError where nothing says whose they are."""
    if isinstance(unit, Record):
        return source
    if source.person_column is None:
        hint = "is required with unit person: the column of ids that say whose each record is"
        raise InputError(FIELD, None, hint)
    return People(source, partition)


class People(Source):
    """A source's persons in the place of its records, for a partition alone."""

    def __init__(self, source: Source, partition: Partition) -> None:
        self.target, self.columns, self.silo_column = source.target, source.columns, source.silo_column
        self.label_column, self.label_pairs = source.label_column, source.label_pairs
        self.num_features, self.num_classes = source.num_features, source.num_classes
        self._source, self._natural = source, isinstance(partition, NaturalIdPartition)
        ids = source.persons()
        assert ids is not None
        self._ids = self.codes = ids  # codes: the row here of each of the source's records
        if isinstance(partition, NaturalIdPartition):
            column, homes = partition.column(source), partition.homes(source).owner
            if column != source.silo_column:
                self._require_whole(homes, column, BY)
            self.codes = numbered(zip(self.codes.tolist(), homes.tolist(), strict=True))

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        """Persons."""
        return int(self.codes.max()) + 1

    def persons(self) -> Ints:
        """Of the source's records; one id is one number, whatever silos have it."""
        return self._ids

    @property
    def odd_ids(self) -> str:
        """A line on ids that hardly differ, without one of them; or nothing."""
        count = alike(self._source.ids() or ())
        return f"not private: in column {self._source.person_column} {count:,} {ALIKE}" if count else ""

    def keys(self, column: str, field: str) -> Floats:
        """The mean over a person's records."""
        sums = np.bincount(self.codes, self._source.keys(column, field))
        return np.asarray(sums / np.bincount(self.codes), dtype=np.float64)

    def labels(self, column: str, field: str) -> Labels:
        """The label that all records of a person have; InputError counts the persons of several."""
        found = self._source.labels(column, field)
        if not self._natural:  # there a person's records have one label, or none
            require_labels(found.codes, column, field)
            self._require_whole(found.codes, column, field)
        return Labels(self._ends(found.codes)[0], found.names)

    def design(self, rows: Ints) -> Design:
        """A partition reads no records."""
        raise NotImplementedError

    def _ends(self, values: Ints) -> tuple[Ints, Ints]:
        """The least and the largest of each person's values, (num_rows,) each."""
        least, largest = np.full(self.num_rows, values.max()), np.full(self.num_rows, values.min())
        np.minimum.at(least, self.codes, values)
        np.maximum.at(largest, self.codes, values)
        return least, largest

    def _require_whole(self, values: Ints, column: str, field: str) -> None:
        least, largest = self._ends(values)
        if cut := int((least != largest).sum()):
            hint = f"would cut {cut:,} of {self.num_rows:,} persons, whose records differ there: choose a "
            hint += "column that is the same in all records of a person, or a partition that reads none; if "
            hint += "it names the silos that hold the records, say so by data.silo_column and natural_id"
            raise InputError(field, column, hint)

    def expanded(self, persons: Assignment) -> Assignment:
        """Records of the source in the place of persons."""
        return Assignment(persons.names, persons.owner[self.codes])


def require_several(names: Sequence[str], persons: Ints) -> None:
    """InputError for a silo of one person, of so many persons each: all that it sends is about them."""
    if (persons == 1).any():
        name = names[int(persons.argmin())]
        hint = f"all records of silo {name!r} are one person's: nothing it could send would hide them"
        raise InputError(FIELD, name, hint)
