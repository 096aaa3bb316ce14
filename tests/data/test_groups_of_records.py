"""Each record's group goes where the record goes; without an attribute nothing changes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays, Npz
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.csv_table import Csv
from fedsim.data.dataset import Dataset, Reserve
from fedsim.data.federation import load, load_silos, outline
from fedsim.data.frame import Frame
from fedsim.data.partition import IidPartition, Partition, SortedPartition
from fedsim.measure.evaluator import odd_records
from fedsim.protocol.unit import RECORD, Person, Record

GIVEN = ["f", "m", None, "m", "f", "m", "f", "", "m", "f", "m", "f"] * 4
CODES = np.array([{"f": 0, "m": 1}.get(each or "", -1) for each in GIVEN])
PAYS = """\
age,sex,town,who,pay
63,male,north,a,high
41,female,south,b,low
57,,north,c,high
29,male,south,a,low
48,NA,south,b,low
70,female,north,c,high
"""
COLUMNS: dict[str, Any] = {
    "age": {"kind": "number", "lower": 20, "upper": 80},
    "sex": {"kind": "category", "categories": ["male", "female"], "fill": "female"},
    "pay": {"kind": "category", "categories": ["low", "high"]},
}
ONE = IidPartition(num_partitions=1)


@pytest.fixture
def pays(make_csv: Callable[..., Csv]) -> Callable[..., Csv]:
    def make(text: str = PAYS, sex: dict[str, Any] | None = None, **fields: Any) -> Csv:
        columns = COLUMNS | ({"sex": COLUMNS["sex"] | sex} if sex else {})
        given = {"target": "pay", "silo_column": "town", "schema": columns, "attribute": "sex"}
        return make_csv(text, **given | fields)

    return make


def known(data: Dataset, rows: list[int]) -> tuple[tuple[str, ...], list[int]]:
    """Names and codes of these records' groups."""
    found = data.open().design(np.array(rows)).groups
    assert found is not None
    return found.names, found.codes.tolist()


def numbered(**options: Any) -> Arrays:
    """Records whose one feature is their number."""
    rows = np.arange(len(GIVEN), dtype=float)
    persons = rows.astype(int) // 2
    return Arrays(rows[:, None], np.arange(len(rows)) % 2, person=persons, group=GIVEN, **options)


@pytest.mark.parametrize("partition", [IidPartition(num_partitions=3), SortedPartition(num_partitions=2)])
@pytest.mark.parametrize("use", [None, "rest", "reserved"])
@pytest.mark.parametrize("unit", [RECORD, Person()])
def test_groups_stay_with_their_records(partition: Partition, use: Any, unit: Record | Person) -> None:
    data = numbered(reserve=use and Reserve(fraction=0.5, use=use), intercept=False)
    if unit != RECORD and isinstance(partition, SortedPartition):
        partition = SortedPartition(num_partitions=2, by="x0")  # targets would cut persons
    seen, found = 0, load(data, partition, 3, 1, unit)
    for silo in found.silos:
        for features, groups in (
            (silo.train.features, silo.train.groups),
            (silo.test.features, silo.test.groups),
        ):
            assert groups is not None
            np.testing.assert_array_equal(groups, CODES[features[:, 0].astype(int)])
            assert groups.dtype == np.int64
            seen += len(set(groups.tolist()))
    assert seen > len(found.silos)  # no silo's are all the same
    (own,) = load_silos(data, partition, 3, 1, [found.silos[1].name], unit)
    assert own.train.groups is not None
    assert found.silos[1].train.groups is not None
    np.testing.assert_array_equal(own.train.groups, found.silos[1].train.groups)
    assert outline(data, partition, 3, unit).groups == ("f", "m")


def test_a_table_has_groups_and_fills_none(pays) -> None:
    for apart in (True, False):
        data = pays(attribute_is_feature=not apart)
        found = data.open().design(np.arange(6))
        assert found.groups is not None
        assert found.groups.names == outline(data, ONE, 0).groups == ("male", "female")
        assert found.groups.codes.tolist() == [0, 1, -1, 0, -1, 1]
        filled = [[-0.5], [0.5], [0.5], [-0.5], [0.5], [0.5]]  # of female
        assert (found.features[:, 1:] == ([[]] * 6 if apart else filled)).all()
    federation = load(pays(test_fraction=0), NaturalIdPartition(), 0, 0)
    codes = {silo.name: silo.train.groups.tolist() for silo in federation.silos}
    assert codes == {"north": [0, -1, 1], "south": [1, 0, -1]}
    assert (
        load(pays(pca=1, preprocessing_cost="ignored"), NaturalIdPartition(), 0, 0).silos[0].train.groups
        is not None
    )
    no_fill = pays(sex={"fill": None}, attribute_is_feature=False)
    assert known(no_fill, list(range(6)))[1] == found.groups.codes.tolist()
    with pytest.raises(InputError, match=r"schema\.sex: None: row 3: no value"):
        pays(sex={"fill": None}).open().design(np.arange(6))


def test_an_attribute_apart_is_as_if_it_had_no_column(pays) -> None:
    apart, part = pays(attribute_is_feature=False, test_fraction=0.4), NaturalIdPartition()
    columns = {name: COLUMNS[name] for name in ("age", "pay")}
    plain = pays(attribute=None, schema=columns, test_fraction=0.4)
    ours, theirs = load(apart, part, 0, 0), load(plain, part, 0, 0)
    for one, other in zip(ours.silos, theirs.silos, strict=True):
        np.testing.assert_array_equal(one.train.features, other.train.features)
        np.testing.assert_array_equal(one.test.features, other.test.features)
    for name in ("feature_names", "num_features", "squared_norms"):
        assert getattr(apart.open(), name) == getattr(plain.open(), name)
    assert ours.fitted.recipe == theirs.fitted.recipe
    told, same = outline(apart, part, 0), outline(plain, part, 0)
    assert told.num_features == same.num_features == 2
    assert told.squared_norms == same.squared_norms == pytest.approx((2, 4 / 3))
    new = pd.DataFrame({"age": [50.0, 80.0]})  # no column of the attribute
    assert ours.fitted.features(new).tolist() == [[0, 1], [1, 1]]
    with pytest.raises(InputError, match="'sex': the table has no such column"):
        load(pays(), part, 0, 0).fitted.features(new)


def test_the_digest_has_groups_and_nothing_else_changes(pays) -> None:
    def digest(data: Dataset) -> str:
        return load(data, ONE, 0, 0).digest

    plain, with_groups = pays(attribute=None), pays()
    assert digest(plain) != digest(with_groups) != digest(pays(PAYS.replace("57,,", "57,male,")))
    ours, theirs = load(with_groups, ONE, 0, 0).silos[0], load(plain, ONE, 0, 0).silos[0]
    np.testing.assert_array_equal(ours.train.features, theirs.train.features)
    assert theirs.train.groups is theirs.test.groups is plain.open().design(np.arange(6)).groups is None
    assert outline(plain, ONE, 0).groups == ()
    # of the same features and targets as arrays, before there were groups
    known = Arrays([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0, 1, 1])
    assert digest(known) == "b0b3045a836f851535f9c80cf256c749590c43bb03fade9b755fddfbd5471bab"


@pytest.mark.parametrize(
    ("fields", "said"),
    {
        "no such": (
            {"attribute": "gender"},
            r"attribute: 'gender': needs an entry in the schema; known: 'age'",
        ),
        "no entry": ({"attribute": "note"}, r"attribute: 'note': needs an entry in the schema"),
        "a number": ({"attribute": "age"}, r"attribute: 'age': groups need a column of kind: category"),
        "one category": (
            {"sex": {"categories": ["female"]}},
            r"attribute: 'sex': groups need .* of two categories or more",
        ),
        "target": ({"attribute": "pay"}, r"attribute: 'pay': is the target; .* name its column"),
        "silo": ({"attribute": "town"}, r"attribute: 'town': is the silos' names"),
        "person": ({"attribute": "who", "person_column": "who"}, r"attribute: 'who': is ids"),
        "nothing apart": (
            {"attribute": None, "attribute_is_feature": False},
            r"attribute_is_feature: False: .* name its column \(attribute\), or leave this out",
        ),
        "nothing left": (
            {"attribute_is_feature": False, "schema": {name: COLUMNS[name] for name in ("sex", "pay")}},
            r"schema: \['sex', 'pay'\]: declare at least one feature .* beside the target and the attribute",
        ),
    }.values(),
)
def test_bad_attributes_are_refused(pays, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=rf"^scenario\.data\.{said}"):
        outline(pays(**fields), ONE, 0)


@pytest.mark.parametrize("apart", [True, False])
def test_an_error_holds_no_group_of_a_record(pays, apart: bool) -> None:
    data = pays(PAYS.replace("29,male", "29,Male"), attribute_is_feature=not apart)
    hint = r"schema\.sex: 1: of 6 records have no declared category \(the first is row 4\): declare theirs"
    with pytest.raises(InputError, match=hint) as caught:
        load(data, ONE, 0, 0)
    assert "male" not in str(caught.value).lower()
    with pytest.raises(InputError, match=r"group: 2: of 3 records are in no declared group") as caught:
        Arrays(np.zeros((3, 1)), [0, 1, 0], group=["her", "him", "x"], groups=["x", "y"])
    assert "her" not in str(caught.value)
    assert "him" not in str(caught.value)


def test_a_declared_group_that_no_silo_has_is_told(pays) -> None:
    told = "no record of any silo is in the declared group 'other'"
    data = pays(sex={"categories": ["male", "other", "female"]})
    assert odd_records(load(data, ONE, 0, 0))[:1] == [told]
    for other in (pays(), pays(attribute=None)):
        assert not any("declared group" in line for line in odd_records(load(other, ONE, 0, 0)))


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda given: pd.Series(given, dtype="string")])
def test_arrays_take_groups_as_they_come(kind: Callable[..., Any]) -> None:
    data = Arrays(np.zeros((4, 1)), [0, 1, 0, 1], group=kind(["b", "a", "", "b"]))
    assert known(data, [0, 2, 3]) == (("a", "b"), [1, -1, 1])
    assert "group" not in data.open().columns
    assert data.open().feature_names == ("x0",)


def test_arrays_refuse_what_are_no_groups() -> None:
    records: Any = np.zeros((3, 1)), [0, 1, 0]
    assert known(Arrays(*records, group=[7, None, 3]), [0, 1, 2]) == (("3", "7"), [1, -1, 0])
    declared = Arrays(*records, group=["b", "b", np.nan], groups=["b", "a"])
    assert known(declared, [2, 0]) == (declared.open().groups, [-1, 0]) == (("b", "a"), [-1, 0])
    for given, said in {
        "shape": ({"group": ["a", "b"]}, r"group: \(2,\): must have shape \(3,\)"),
        "one": ({"group": ["a", "a", ""]}, r"groups: 1: at least two different ones: declare all groups"),
        "twice": ({"group": ["a"] * 3, "groups": ["a", "a"]}, "groups: 1: at least two different ones"),
        "real": ({"group": ["a", 1.5, True]}, r"group: 2: of 3 records have no text or whole number"),
        "alone": ({"groups": ["a", "b"]}, r"groups: \('a', 'b'\): only where each record's group is given"),
        "few": ({"group": ["a", "b", "a"], "groups": ["a"]}, "groups: .*at least 2 items"),
    }.values():
        with pytest.raises(InputError, match=said):
            Arrays(*records, **given)


def test_files_and_frames_have_groups(tmp_path, pays) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, features=np.zeros((3, 1)), target=[0, 1, 1], group=np.array(["m", "", "f"]))
    assert known(Npz(path=path, groups=("m", "f", "x")), [0, 1, 2]) == (("m", "f", "x"), [0, -1, 1])
    table = pd.read_csv(pays().path)
    frame = Frame(table, "pay", "town", attribute="sex", attribute_is_feature=False, person="who")
    assert frame.open().feature_names == ("age",)
    names, codes = known(frame, list(range(6)))
    assert [(*names, None)[code] for code in codes] == ["male", "female", None, "male", None, "female"]
    with pytest.raises(InputError, match=r"scenario\.data\.attribute: 'gender': needs an entry"):
        Frame(table, "pay", "town", attribute="gender").open()
