"""The words of a guarantee: of a record as ever, and of a person by relation."""

from itertools import product

import pytest

from fedsim.privacy.registry import MECHANISMS
from fedsim.privacy.unit_words import guaranteed, words
from fedsim.protocol.unit import RECORD, Person, Record
from fedsim.report.summary import Privacy, SiloRow
from fedsim.report.texts import captioned, silo_table
from fedsim.simulation.sweeps.summarise import GUARANTEE

RELATIONS = ("replace_person", "replace_values", "add_remove")
PRIVATE = [own for own in MECHANISMS.values() if own.private and not own.of_groups]


@pytest.mark.parametrize("text", [*(mechanism.guarantee for mechanism in PRIVATE), GUARANTEE])
def test_every_guarantee_takes_the_words_of_its_unit(text: str) -> None:
    assert "{change}" in text
    assert "replacing one of its records" in guaranteed(text, words(RECORD))
    assert "replacing the label of one of its records, whose" in guaranteed(text, words(RECORD, "label"))
    for relation, protects in product(RELATIONS, ("record", "label")):
        said = guaranteed(text, words(Person(relation=relation), protects))
        assert "one of its records" not in said
        assert "one record" not in said
        assert "one person in that silo" in said
        assert ("features are not protected" in said) == (protects == "label")


def test_a_guarantee_of_groups_alone_says_so_whatever_the_words() -> None:
    said = words(RECORD, "group")
    text = guaranteed(MECHANISMS["attribute_gaussian"].guarantee, said)
    assert "changing the group of one of its records; features and labels are published" in text
    assert "features and labels are published" in said.one


@pytest.mark.parametrize("unit", [RECORD, *(Person(relation=each) for each in RELATIONS[:2])])
def test_titles_and_adjacency_say_what_is_protected(unit: Record | Person) -> None:
    for protects in ("label", "group"):
        said = words(unit, protects)
        assert all(protects in each for each in (said.one, said.adjacency, said.change, said.title))


@pytest.mark.parametrize(
    ("relation", "adjacency", "change"),
    [
        ("replace_person", "any number of them; the number of persons is fixed and public", "any number of"),
        ("replace_values", "who has how many records is public", "by as many of another person"),
        ("add_remove", "one person more or fewer; the number of persons is private", "adding or removing"),
    ],
)
def test_each_relation_says_what_neighbours_differ_in(relation: str, adjacency: str, change: str) -> None:
    said = words(Person(relation=relation), column="patient_id")
    assert said.one == "all records of one person in one silo (one value of `patient_id`)"
    assert adjacency in said.adjacency
    assert change in said.change
    assert "(one value of `patient_id`)" in said.change


def test_tables_are_headed_by_their_unit() -> None:
    record, person = words(RECORD), words(Person())
    assert record.title == "replace one record"
    assert captioned(record.title) == "For replacing one record"
    assert captioned(person.title) == "For replacing one person's records by another's"
    assert captioned(words(Person(relation="add_remove")).title) == "For one person more or fewer"
    silo = SiloRow(name="a", n=7, epsilon_budget=1.0, delta=1e-5, noise_multiplier=1.0)
    for unit, head in ((record, "records n"), (person, "persons n")):
        stated = Privacy.model_construct(silos=[silo], title=unit.title, counted=unit.counted)
        assert silo_table(stated).columns[1] == head
