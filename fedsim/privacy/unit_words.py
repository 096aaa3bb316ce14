"""The words of a guarantee that depend on its unit: whose data it is about, and what neighbours differ in."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fedsim.protocol.unit import RECORD, Person, Protects, Unit


class Words(NamedTuple):
    """Whose data a guarantee is about, as a report says it."""

    one: str  # the unit
    adjacency: str  # what neighbouring data sets differ in
    change: str  # the same within a guarantee, which is "with respect to" this
    title: str  # the same for titles
    counted: str  # what n counts

    @property
    def private(self) -> Words:
        """The same beside public records, which no guarantee is about.

        >>> _RECORD.private.one, _RECORD.private.change
        ('one private record of one silo', 'replacing one of its private records')
        """
        said = [re.sub(r"\brecords?\b", r"private \g<0>", each) for each in self[:4]]
        return Words(said[0], said[1], said[2], said[3], self.counted)


_RECORD = Words(
    "one record of one silo",
    "replace one record, number of records fixed and public",
    "replacing one of its records",
    "replace one record",
    "records",
)
_GROUP = Words(
    "the group of one record of one silo; features and labels are published",
    "change the group of one record, or whether it has one",
    "changing the group of one of its records",
    "change the group of one record",
    "records",
)
_LABEL = Words(
    "the label of one record of one silo; features are not protected",
    "replace the label of one record; features are not protected",
    "replacing the label of one of its records, whose features are not protected",
    "replace the label of one record",
    "records",
)
_TITLE = dict.fromkeys(("replace_person", "replace_values"), "replace one person's records by another's")
_TITLE["add_remove"] = "one person more or fewer"
_ADJACENCY = {
    "replace_person": ", any number of them; the number of persons is fixed and public, of records it is not",
    "replace_values": ", as many of them; who has how many records is public",
    "add_remove": "; the number of persons is private, the silo declares one in its place",
}
_CHANGE = {
    "replace_person": "replacing {} by those of another person, any number of them",
    "replace_values": "replacing {} by as many of another person",
    "add_remove": "adding or removing {}",
}
_HIDDEN = "features are not protected"


def words(unit: Unit, protects: Protects = "record", column: str | None = None) -> Words:
    """The words for a unit, and for what of its records is protected; a `column` says whose a record is,
    where that is known.

    >>> words(RECORD).one, words(Person()).one
    ('one record of one silo', 'all records of one person in one silo')
    """
    if protects == "group":
        return _GROUP
    labels = protects == "label"
    if unit == RECORD:
        return _LABEL if labels else _RECORD
    value = f" (one value of `{column}`)" if column else ""
    of = "the labels of all records" if labels else "all records"
    hidden = f"; {_HIDDEN}" if labels else ""
    change = _CHANGE[unit.relation].format(f"{of} of one person in that silo{value}")
    one, title = f"{of} of one person in one silo{value}{hidden}", _TITLE[unit.relation]
    title = title.replace("records", "labels") if labels else title
    return Words(one, title + _ADJACENCY[unit.relation] + hidden, change + hidden, title, "persons")


def change_of(relation: Any) -> str:
    """What a guarantee is for: a record where there is no relation."""
    return words(RECORD if relation is None else Person(relation=relation)).change


def guaranteed(text: str, own: Words, silo: str = "silo") -> str:
    """A mechanism's guarantee, a template, in the words of a unit and of the silos that it is for."""
    return text.format(change=own.change, unit=own.counted[:-1], silo=silo)
