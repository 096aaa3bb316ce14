"""A person's own table."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import TypeAdapter
from support.refusals import ANY, refused
from support.scenarios import once, write

from fedsim.common.errors import InputError
from fedsim.data.arrays import Arrays, Npz
from fedsim.data.builtin import Synthetic
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.csv_table import Csv
from fedsim.data.drafting import draft
from fedsim.data.federation import load, outline
from fedsim.data.partition import IidPartition, SortedPartition
from fedsim.data.registry import DataConfig
from fedsim.data.schema import DEFAULTS, coding, read_schema
from fedsim.data.table import open_table
from fedsim.scenario.load import load as load_scenario


def all_records(data: Csv) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets in an order of their own: by age, which is the first feature."""
    silo = load(data, IidPartition(num_partitions=1), 0, 0).silos[0]
    features = np.concatenate([silo.train.features, silo.test.features])
    targets = np.concatenate([silo.train.target, silo.test.target])
    order = np.argsort(features[:, 0])
    return features[order], targets[order]


def log_scaled(value: float) -> float:
    return 2 * np.log(value / 100) / np.log(4) - 1


EXPECTED = np.array(
    [  # age, male of two, chol, intercept
        [(29 - 50) / 30, 1 / 2, log_scaled(200), 1],
        [(41 - 50) / 30, -1 / 2, log_scaled(200), 1],
        [(48 - 50) / 30, 1 / 2, log_scaled(229), 1],
        [(57 - 50) / 30, -1 / 2, log_scaled(354), 1],
        [(63 - 50) / 30, 1 / 2, log_scaled(233), 1],
        [(70 - 50) / 30, -1 / 2, log_scaled(200), 1],
    ]
)


def test_columns_become_features_in_the_schemas_order(make_csv) -> None:
    features, targets = all_records(make_csv())
    assert features == pytest.approx(EXPECTED)
    assert targets.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_parquet_table_gives_the_same_records(make_csv, tmp_path) -> None:
    path = tmp_path / "clinic.parquet"
    ages, chols = [63, 41, 57, 29, 48, 70], [233.0, None, 354.0, float("nan"), 229.0, None]
    sexes = pa.array(["male", "female", "female", "male", "male", "female"]).dictionary_encode()
    outcomes = ["ill", "well", "ill", "well", "well", "ill"]
    columns = {"age": ages, "sex": sexes, "chol": chols, "outcome": outcomes, "hospital": [1, 2, 1, 3, 2, 3]}
    pq.write_table(pa.table(columns), path)
    data = make_csv(path=path)
    features, targets = all_records(data)
    assert features == pytest.approx(EXPECTED)
    assert targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert list(outline(data, NaturalIdPartition(), 0).sizes) == ["1", "2", "3"]


def test_the_schema_may_stand_in_a_file(make_csv, schema, tmp_path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump(schema, sort_keys=False))
    assert np.array_equal(all_records(make_csv(schema=path))[0], all_records(make_csv())[0])


def test_a_dumped_configuration_reads_back(make_csv) -> None:
    data = make_csv()
    for mode in ("python", "json"):
        dumped = data.model_dump(mode=mode)
        assert "schema" in dumped
        assert TypeAdapter(DataConfig).validate_python(dumped) == data


def test_a_declared_category_is_never_missing(make_csv, schema) -> None:
    schema["sex"]["categories"] = ["female", "male", "?"]
    data = make_csv("age,sex,hospital,chol,outcome\n30,?,a,200,ill\n40,male,a,200,well\n", schema=schema)
    assert all_records(data)[0][0, 1:3] == pytest.approx(np.array([-1 / 3, 2 / 3]))


def test_missing_categories_are_filled(make_csv, schema) -> None:
    schema["sex"]["fill"] = "male"
    data = make_csv("age,sex,hospital,chol,outcome\n30,?,a,200,ill\n40,Null,a,200,well\n", schema=schema)
    assert all_records(data)[0][:, 1].tolist() == [1 / 2, 1 / 2]


def test_spaces_and_quoted_line_breaks_are_harmless(make_csv) -> None:
    text = 'age,sex,hospital,chol,outcome,note\n 30 , male,a,200,ill,"two\nlines"\n40,male,a,200, well ,x\n'
    data = make_csv(text, multiline=True)
    assert len(all_records(data)[0]) == 2
    assert outline(data, SortedPartition(num_partitions=2), 0).sizes == {"silo-00": 1, "silo-01": 1}


def test_values_beyond_the_range_are_clipped(make_csv) -> None:
    data = make_csv("age,sex,hospital,chol,outcome\n-5,male,a,1,ill\n900,male,a,1e9,well\n")
    assert all_records(data)[0][:, [0, 2]].tolist() == [[-1, -1], [1, 1]]


def test_a_column_outside_the_schema_can_sort_the_records(make_csv, schema) -> None:
    del schema["age"]
    source = make_csv(schema=schema).open()
    assert source.keys("age", "").tolist() == [63, 41, 57, 29, 48, 70]
    assert source.keys("hospital", "").tolist() == [1, 2, 1, 0, 2, 0]


def test_the_outline_reads_no_feature(make_csv) -> None:
    """A feature that cannot be read is found by load alone, so outline has not looked."""
    data = make_csv("age,sex,hospital,chol,outcome\nold,male,a,200,ill\nyoung,male,b,200,well\n")
    assert outline(data, NaturalIdPartition(), 0).sizes == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match="not a number"):
        load(data, NaturalIdPartition(), 0, 0)


def test_the_table_and_its_schemas_file_are_what_records_depend_on(make_csv, tmp_path) -> None:
    schema = tmp_path / "schema.yaml"
    assert make_csv(schema=schema).files == {"path": tmp_path / "clinic.csv", "schema": schema}
    assert make_csv().files == {"path": tmp_path / "clinic.csv"}
    assert Synthetic().files == {}


def test_a_schema_with_a_column_twice_is_refused_and_labels_like_numbers_survive(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text("age: {kind: number, lower: 0, upper: 1}\nage: {kind: number, lower: 0, upper: 99}\n")
    with refused("scenario.data.schema", ANY, ".yaml': line 2: the key 'age' stands twice"):
        read_schema(path)
    (tmp_path / "table.csv").write_text("grade,sick\n1e3,yes\n2e3,no\nlow,yes\n")
    path.write_text(draft(open_table(tmp_path / "table.csv", "path"), "sick", None, DEFAULTS).yaml)
    assert read_schema(path)["grade"].categories == ("1e3", "2e3", "low")


def test_features_and_classes_have_names(make_csv) -> None:
    source = make_csv().open()
    assert source.feature_names == ("age", "sex=male", "chol")
    assert make_csv(intercept=False).open().feature_names == ("age", "sex=female", "sex=male", "chol")
    assert source.classes == ("well", "ill")


WARDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize("scaling", ["declared", "training_statistics", "silo_statistics", "none"])
@pytest.mark.parametrize(("levels", "intercept"), [(1, 1), (2, 1), (3, 1), (4, 1), (1, 0), (4, 0)])
def test_a_category_has_a_level_less_beside_an_intercept(make_csv, scaling, levels, intercept) -> None:
    """By a formula of the level alone, under every scaling; its norms are those of all levels there are."""
    wards = WARDS[:levels] * 2
    text = "age,ward,hospital,outcome\n" + "".join(f"{30 + i},{w},n,ill\n" for i, w in enumerate(wards))
    schema = {
        "ward": {"kind": "category", "categories": WARDS[:levels]},
        "age": {"kind": "number", "lower": 20, "upper": 80},
        "outcome": {"kind": "category", "categories": ["well", "ill"]},
    }
    data = make_csv(text, schema=schema, scaling=scaling, intercept=bool(intercept), test_fraction=0)
    own = load(data, NaturalIdPartition(), 0, 0)
    first = 1 if intercept else 0
    expected = [[(w == each) - intercept / levels for each in WARDS[first:levels]] for w in wards]
    found = own.silos[0].train.features[:, : levels - first]
    assert np.array(sorted(found.tolist())) == pytest.approx(np.array(sorted(expected)))
    assert own.num_features == levels - first + 1 + first
    assert own.fitted.recipe.names[: levels - first] == [f"ward={each}" for each in WARDS[first:levels]]
    norms = (np.array(expected).reshape(len(wards), -1) ** 2).sum(axis=1)
    known = data.open().squared_norms
    assert known == pytest.approx((1 + norms.max(), 1 / 3 + norms.mean()))


def test_the_first_level_is_what_the_others_are_compared_with(make_csv) -> None:
    """What w coefficients and an intercept predicted, w - 1 and another intercept predict."""
    effect, intercept, shifted = np.array([0.5, -2.0, 1.0, 0.25]), 0.75, coding(4, intercept=True)
    left = effect[1:] - effect[0]
    assert coding(4, intercept=False) @ effect + intercept == pytest.approx(
        shifted @ left + intercept + effect.mean()
    )


# A person's own arrays in a file.

X = np.arange(8.0).reshape(4, 2)
Y = np.array([0, 1, 1, 0])


@pytest.fixture
def npz(tmp_path: Path) -> Any:
    """`npz(fields of the data set, **arrays)`."""

    def make(fields: dict[str, Any] | None = None, **arrays: Any) -> Npz:
        np.savez(tmp_path / "records.npz", **arrays)
        return Npz(path=tmp_path / "records.npz", **(fields or {}))

    return make


def test_the_file_gives_what_the_arrays_give(npz) -> None:
    silo, ranges = np.array(["north", "south", "north", "south"]), ([0.0, 0.0], [10.0, 10.0])
    data = npz({"scaling": "declared"}, features=X, target=Y, silo=silo, ranges=np.array(ranges))
    same = Arrays(X, Y, silo, ranges=ranges)
    a, b = (load(each, NaturalIdPartition(), 0, 0) for each in (data, same))
    assert a.digest == b.digest
    assert [silo.name for silo in a.silos] == ["north", "south"]
    assert "the ranges count as public" in data.not_private[0]


def test_features_stay_as_they_are_without_ranges(npz) -> None:
    silo = load(
        npz({"intercept": False}, features=X, target=Y + 0.5), IidPartition(num_partitions=1), 0, 0
    ).silos[0]
    assert {tuple(x) for x in [*silo.train.features, *silo.test.features]} == {tuple(x) for x in X}
    assert silo.train.target.dtype == np.float64


def test_declared_classes_count_where_no_record_has_them(npz) -> None:
    data = npz({"classes": 3}, features=X, target=np.zeros(4, dtype=int))
    assert outline(data, IidPartition(num_partitions=1), 0).num_classes == 3


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no target": ({}, {"features": X}, "has no array 'target'"),
    "an unknown array": ({}, {"features": X, "target": Y, "sillo": Y}, "did you mean 'silo'?"),
    "objects": ({}, {"features": X, "target": np.array([{}, 1, 2, 3])}, "not a readable npz file"),
    "a short target": ({}, {"features": X, "target": Y[:3]}, "must have shape (4,)"),
    "ranges of no such shape": (
        {"scaling": "declared"},
        {"features": X, "target": Y, "ranges": np.zeros((3, 2))},
        "must be lower and upper ends",
    ),
    "declared without ranges": ({"scaling": "declared"}, {"features": X, "target": Y}, "has no array ranges"),
    "ranges without a scaling": (
        {},
        {"features": X, "target": Y, "ranges": np.ones((2, 2))},
        "say whether they scale",
    ),
    "more classes than declared": ({"classes": 2}, {"features": X, "target": Y * 2}, "classes are 0 to 1"),
    "classes of numbers": ({"classes": 2}, {"features": X, "target": Y / 2}, "whole numbers"),
}


@pytest.mark.parametrize(("fields", "arrays", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(npz, fields: dict[str, Any], arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        npz(fields, **arrays).open()
    assert caught.value.field.startswith("scenario.data.")
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 not a zip", b"\x93NUMPY"])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "records.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"scenario\.data\.path: .*(no such file|not a readable npz|has no array)"
    ):
        Npz(path=path).open()


def test_a_scenario_names_it_relative_to_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "records.npz", features=X, target=Y)
    file = write(tmp_path, once(data={"name": "npz", "path": "records.npz"}))
    assert load_scenario(file).data.open().num_rows == 4
