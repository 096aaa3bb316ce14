"""With unit person every division is one of whole persons; with unit record ids change nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.dataset import Dataset, Reserve
from fedsim.data.federation import Federation, divided, load, load_silos, outline
from fedsim.data.frame import Frame
from fedsim.data.partition import IidPartition, Partition, SizePartition, SortedPartition
from fedsim.data.visits import Visits
from fedsim.measure.evaluator import odd_records
from fedsim.protocol.unit import RECORD, Person, Unit

PERSON = Person()
VISITS = """\
id,age,sex,hospital,outcome
b,63,male,north,ill
a,41,female,south,well
b,57,female,north,ill
7,29,male,east,well
007,48,male,south,well
a,70,female,east,ill
c,33,male,north,well
d,52,female,south,ill
d,52,female,south,well
e,66,female,east,ill
"""
FEATURES: dict[str, Any] = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "sex": {"kind": "category", "categories": ["female", "male"]},
    "outcome": {"kind": "category", "categories": ["well", "ill"]},
}


def people(visits: list[int], silos: int = 0, **options: Any) -> Arrays:
    """Persons with so many records each, shuffled; the first feature is the record's number."""
    rng = np.random.default_rng(len(visits))
    whose = rng.permutation(np.repeat(np.arange(len(visits)), visits))
    rows = np.arange(len(whose), dtype=float)
    features = np.stack([rows, 10.0 * whose, rng.normal(size=len(rows))], axis=1)
    silo = rng.integers(silos, size=len(rows)) if silos else None
    return Arrays(features, whose % 3, silo, person=whose, **options)


def whose(data: Dataset, rows: Any) -> set[int]:
    codes = data.open().persons()
    assert codes is not None
    return set(codes[rows].tolist())


PARTITIONS: dict[str, Partition] = {
    "iid": IidPartition(num_partitions=3),
    "proportions": IidPartition(num_partitions=3, proportions=(1, 2, 3)),
    "size": SizePartition(partition_sizes=(4, 9, 3)),
    "sorted": SortedPartition(num_partitions=3, by="x2"),
    "dirichlet": DirichletPartition(num_partitions=3, alpha=5, min_partition_size=4),
    "pathological": PathologicalPartition(num_partitions=3, num_classes_per_partition=2),
    "label_pairs": LabelPairsPartition(first=("0",), second=("1", "2")),
}


@given(
    visits=st.lists(st.integers(1, 12), min_size=24, max_size=40),
    name=st.sampled_from(sorted(PARTITIONS)),
    use=st.sampled_from([None, "rest", "reserved"]),
    seed=st.integers(0, 99),
    fraction=st.floats(0.1, 0.8),
)
@settings(max_examples=120, deadline=None)
def test_no_person_is_cut(visits: list[int], name: str, use: Any, seed: int, fraction: float) -> None:
    reserve = use and Reserve(fraction=0.6, use=use)
    data, partition = people(visits, test_fraction=fraction, reserve=reserve), PARTITIONS[name]
    try:
        told = outline(data, partition, seed, PERSON)
    except InputError:
        reject()  # a silo too small for a reserve, or no draw that fits
    splits, found = divided(data, partition, seed, 1, PERSON), load(data, partition, seed, 1, PERSON)
    groups = [whose(data, part) for both in splits.values() for part in both]
    assert sum(map(len, groups)) == len(set().union(*groups))  # pairwise disjoint
    for silo, (train, test) in zip(found.silos, splits.values(), strict=True):
        assert told.sizes[silo.name] == len(set(silo.train.owners.tolist())) == len(whose(data, train))
        assert told.held_out[silo.name] == len(whose(data, np.concatenate([train, test]))) - len(
            whose(data, train)
        ) or use  # fmt: skip
        np.testing.assert_array_equal(silo.train.owners, data.open().persons()[train])
        np.testing.assert_array_equal(silo.test.owners, data.open().persons()[test])
        np.testing.assert_array_equal(silo.train.features[:, 0], train)  # in increasing order
    assert told.num_records == len(visits)
    if use is None:  # whole persons, and all of their records
        rows = np.concatenate([part for both in splits.values() for part in both])
        assert len(rows) == sum(visits[each] for each in _ids(data, groups))
        assert told.unused == len(visits) - sum(map(len, groups))


def _ids(data: Arrays, groups: list[set[int]]) -> Iterator[int]:
    assert data.person is not None
    codes = data.open().persons()
    for code in set().union(*groups):
        yield int(data.person[codes == code][0])


@pytest.mark.parametrize("trial", range(3))
def test_parts_of_a_reserve_share_no_person(trial: int) -> None:
    parts, data = defaultdict(set), people([3] * 30)
    for use in ("rest", "reserved"):
        aside = data.model_copy(update={"reserve": Reserve(fraction=0.4, use=use)})
        for name, both in divided(aside, PARTITIONS["iid"], 5, trial, PERSON).items():
            for k, rows in enumerate(both):
                parts[name, use, k] = whose(data, rows)
    assert sum(map(len, parts.values())) == 30 == len(set().union(*parts.values()))


def test_sizes_count_persons_and_sorting_goes_by_their_mean() -> None:
    data = Arrays(
        [[0.0], [9.0], [3.0], [1.0], [5.0], [6.0]], [0, 1, 0, 1, 0, 1], person=["a", "a", "b", "c", "d", "d"]
    )
    partition = SortedPartition(num_partitions=2, by="x0")  # means 4.5, 3, 1, 5.5
    data = data.model_copy(update={"test_fraction": 0.0})
    low, high = load(data, partition, 0, 0, PERSON).silos
    assert low.train.features[:, 0].tolist() == [3, 1]
    assert high.train.features[:, 0].tolist() == [0, 9, 5, 6]
    assert outline(data, partition, 0, PERSON).sizes == {"silo-00": 2, "silo-01": 2}


def test_one_record_a_person_is_divided_as_records_are() -> None:
    data = people([1] * 40, silos=3, reserve=Reserve(fraction=0.5))
    for partition in (*PARTITIONS.values(), NaturalIdPartition(), NaturalIdPartition(equal_sizes=True)):
        for trial in range(2):
            by_record, by_person = (load(data, partition, 4, trial, unit).silos for unit in (RECORD, PERSON))
            for one, other in zip(by_record, by_person, strict=True):
                np.testing.assert_array_equal(one.train.features, other.train.features)
                np.testing.assert_array_equal(one.test.target, other.test.target)
        assert outline(data, partition, 4) == outline(data, partition, 4, PERSON)


def test_ids_change_nothing_under_unit_record() -> None:
    data = people([4] * 12, silos=2)
    plain = Arrays(data.features, data.target, data.silo)
    for partition in (PARTITIONS["iid"], PARTITIONS["dirichlet"], NaturalIdPartition()):
        ours, theirs = load(data, partition, 3, 1), load(plain, partition, 3, 1)
        assert ours.digest == theirs.digest
        assert outline(data, partition, 3) == outline(plain, partition, 3)
        for one, other in zip(ours.silos, theirs.silos, strict=True):
            np.testing.assert_array_equal(one.train.features, other.train.features)
            assert len(one.train.owners) == len(one.train.target)
            assert other.train.owners is None
            assert other.test.owners is None


def test_the_digest_binds_who_is_who() -> None:
    data = people([4] * 12)
    other = Arrays(data.features, data.target, person=np.where(data.person == "3", "4", data.person))
    several = Person("limit", 2)
    for unit, same in ((RECORD, True), (PERSON, False)):
        a, b = (load(each, IidPartition(num_partitions=1), 0, 0, unit).digest for each in (data, other))
        assert (a == b) is same
    split = IidPartition(num_partitions=2)
    assert load(data, split, 0, 0, PERSON).digest == load(data, split, 0, 0, several).digest


def test_a_silo_reads_its_own_persons_alone() -> None:
    data = people([3] * 20)
    whole: Federation = load(data, PARTITIONS["iid"], 2, 1, PERSON)
    (own,) = load_silos(data, PARTITIONS["iid"], 2, 1, ["silo-01"], PERSON)
    np.testing.assert_array_equal(own.train.features, whole.silos[1].train.features)
    np.testing.assert_array_equal(own.train.owners, whole.silos[1].train.owners)
    np.testing.assert_array_equal(own.test.owners, whole.silos[1].test.owners)


def test_a_silos_name_makes_one_id_several_persons(make_csv) -> None:
    data = make_csv(VISITS, schema=FEATURES, person_column="id", test_fraction=0.0)
    assert outline(data, NaturalIdPartition(), 0, PERSON).sizes == {"east": 3, "north": 2, "south": 3}
    (east,) = (silo for silo in load(data, NaturalIdPartition(), 0, 0, PERSON).silos if silo.name == "east")
    assert len(set(east.train.owners.tolist())) == len(east.train.target) == 3
    unnamed = data.model_copy(update={"silo_column": None})
    with pytest.raises(InputError, match=r"partition_by: 'hospital': would cut 1 of 7 persons"):
        outline(unnamed, NaturalIdPartition(partition_by="hospital"), 0, PERSON)
    levelled = NaturalIdPartition(equal_sizes=True)
    assert set(outline(data, levelled, 0, PERSON).sizes.values()) == {2}


def test_a_simulation_counts_records_of_a_person_and_shared_persons(make_csv) -> None:
    data = make_csv(VISITS + "e,30,male,east,ill\ne,30,male,east,ill\n", schema=FEATURES, person_column="id")
    data = data.model_copy(update={"test_fraction": 0.0})
    for unit in (RECORD, PERSON):
        found = load(data, NaturalIdPartition(), 0, 0, unit)
        assert (found.most_records, found.shared_persons) == (3, 1)
        (line,) = odd_records(found)
        assert line.startswith("not private: persons with records in several silos")
        assert line.endswith(": 1")
    plain = load(data.model_copy(update={"person_column": None}), NaturalIdPartition(), 0, 0)
    assert (plain.most_records, plain.shared_persons, odd_records(plain)) == (None, 0, [])


def test_records_without_a_silo_join_their_persons(make_csv) -> None:
    lost = VISITS + "b,20,male,,ill\nf,20,male,,ill\nf,22,male,,ill\n"
    data = make_csv(lost, schema=FEATURES, person_column="id", test_fraction=0.0)
    found = load(data, NaturalIdPartition(without_silo="north"), 0, 0, PERSON).silos
    (north,) = (silo for silo in found if silo.name == "north")
    assert (len(north.train.target), len(set(north.train.owners.tolist()))) == (6, 3)
    dropped = outline(data, NaturalIdPartition(without_silo="drop"), 0, PERSON)
    assert (dropped.sizes["north"], dropped.unused) == (2, 2)  # the rest of b, and f
    with pytest.raises(InputError, match="3 of 13 records have no value"):
        outline(data, NaturalIdPartition(), 0, PERSON)


def test_ids_are_exact_texts(make_csv) -> None:
    text = VISITS.replace("\ne,", "\nA,").replace("\nc,", "\na ,")
    codes = make_csv(text, schema=FEATURES, person_column="id").open().persons()
    assert codes.tolist() == [0, 1, 0, 2, 3, 1, 4, 5, 5, 6]  # 7 is not 007, A and 'a ' are not a
    numbers = pd.DataFrame({"who": [7.0, 8.0, 7.0], "x": [0.5, 1.5, 0.5], "y": ["n", "y", "n"]})
    frame = Frame(numbers, "y", person="who")
    assert set(frame.columns) == {"x", "y"}  # no feature of the draft
    assert frame.open().persons().tolist() == [0, 1, 0]
    assert frame.open().feature_names == ("x",)
    assert people([2, 1]).open().feature_names == ("x0", "x1", "x2")


def _csv(make: Callable[..., Dataset], text: str = VISITS, **fields: Any) -> Dataset:
    return make(text, **{"schema": FEATURES, "person_column": "id"} | fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    {
        "target": ({"person_column": "outcome"}, "'outcome': is the target"),
        "silo": ({"person_column": "hospital"}, "'hospital': is the silos' names"),
        "feature": ({"person_column": "age"}, "'age': is a feature in the schema"),
        "no such": ({"person_column": "ids"}, "'ids': .*did you mean 'id'"),
        "none": ({"person_column": None}, "None: is required with unit person"),
        "blank": (
            {"text": VISITS.replace("\na,", "\n ,")},
            r"'id': 2 of 10 records have no value there \(the first is row 2\)",
        ),
        "missing": ({"text": VISITS.replace("\n007,", "\nNaN,")}, r"'id': 1 of 10 .*row 5\)"),
    }.values(),
)
def test_bad_person_columns_are_refused(make_csv, fields: dict[str, Any], said: str) -> None:
    for use in (outline, lambda *given: load(*given[:3], 0, given[3])):
        with pytest.raises(InputError, match=rf"scenario\.data\.person_column: {said}"):
            use(_csv(make_csv, **fields), IidPartition(num_partitions=2), 0, PERSON)


@pytest.mark.parametrize("bad", [[1, None, " "], ["a", 1.5, True], [np.nan, "secret", ""]])
def test_arrays_without_ids_are_counted(bad: list[Any]) -> None:
    with pytest.raises(InputError, match=r"person: 2: of 3 records .*first is row [01]\)") as caught:
        Arrays(np.zeros((3, 1)), [0, 1, 0], person=bad)
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match=r"person: \(2,\): must have shape \(3,\)"):
        Arrays(np.zeros((3, 1)), [0, 1, 0], person=["a", "b"])


@pytest.mark.parametrize(
    "partition",
    [
        DirichletPartition(num_partitions=2, alpha=1, min_partition_size=1),
        PathologicalPartition(num_partitions=2, num_classes_per_partition=1),
        LabelPairsPartition(first=("well",), second=("ill",)),
    ],
)
def test_labels_that_would_cut_persons_are_refused(make_csv, partition: Partition) -> None:
    for use in (outline, lambda *given: load(*given[:3], 0, given[3])):
        with pytest.raises(InputError, match=r"partition_by: 'outcome': would cut 2 of 7 persons"):
            use(_csv(make_csv), partition, 0, PERSON)


@pytest.mark.parametrize("unit", [PERSON, replace(PERSON, silos_per_person=2)])
def test_a_silo_of_one_person_is_refused(make_csv, unit: Unit) -> None:
    text = VISITS.replace("\nc,", "\nb,")
    for use in (outline, lambda *given: load(*given[:3], 0, given[3])):
        with pytest.raises(InputError, match=r"person_column: 'north': all records of silo 'north'"):
            use(_csv(make_csv, text), NaturalIdPartition(), 0, unit)
    assert outline(_csv(make_csv, text), NaturalIdPartition(), 0).sizes["north"] == 2


def test_an_npz_file_has_persons(tmp_path) -> None:
    from fedsim.data.arrays import Npz

    path = tmp_path / "own.npz"
    np.savez(path, features=np.zeros((3, 1)), target=[0, 1, 1], person=np.array([5, 4, 5]))
    assert Npz(path=path).open().persons().tolist() == [0, 1, 0]


def test_visits_are_as_their_page_says() -> None:
    data = Visits(num_silos=40, persons_per_silo=500, seed=1)
    source = data.open()
    persons = source.persons()
    visits = np.sort(np.bincount(persons))
    assert (len(visits), visits[0], visits[-1], np.median(visits)) == (20_000, 1, 200, 1)
    assert visits.mean() == pytest.approx(3.86, abs=0.15)  # sum of k^-1.2 up to 200
    assert visits[-200:].sum() / visits.sum() == pytest.approx(0.27, abs=0.02)
    features, own = source.features, np.unique(persons, return_index=True)[1]
    assert np.abs(features).max() < 1
    assert features.var(axis=0) == pytest.approx(np.full(10, 1 / 3), abs=0.02)
    two = own[np.bincount(persons) > 1][:-300]  # the first and second visits of the same persons
    same, other = (np.corrcoef(features[two, 0], features[two + k, 0])[0, 1] for k in (1, 300))
    assert same == pytest.approx(0.48, abs=0.05)  # a rank correlation for normal correlation 1/2
    assert abs(other) < 0.05
    told = outline(data, NaturalIdPartition(), 0, PERSON)
    assert set(told.sizes.values()) == {400}
    assert len(told.sizes) == 40


def test_labels_of_visits_may_depend_on_their_number() -> None:
    for by_contribution, differs in ((0.0, False), (2.0, True)):
        source = Visits(num_silos=20, persons_per_silo=1000, by_contribution=by_contribution).open()
        persons, y = source.persons(), source.other("readmitted")
        many = np.bincount(persons)[persons] >= 50
        slopes = [
            np.linalg.lstsq(source.features[part], y[part] - y[part].mean(), rcond=None)[0]
            for part in (many, ~many)
        ]
        cosine = slopes[0] @ slopes[1] / np.linalg.norm(slopes[0]) / np.linalg.norm(slopes[1])
        assert bool(cosine < 0.9) is differs
