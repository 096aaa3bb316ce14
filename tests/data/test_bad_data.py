"""Bad input is named: the field, the value and what would be right."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from support.refusals import ANY, lacking, refused

from fedsim.common.errors import InputError
from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.federation import load, load_silos, outline
from fedsim.data.partition import IidPartition, SizePartition, SortedPartition
from fedsim.data.registry import DataConfig, PartitionConfig

ONE = IidPartition(num_partitions=1)
SMALL = Synthetic(rows=20)

BREASTS, PLAIN, LINEAR = BreastCancer(), Digits(), Synthetic(link="linear")
FEW, SKEWED = DirichletPartition(num_partitions=3, alpha=1), DirichletPartition(num_partitions=2, alpha=1)
AREA = DirichletPartition(num_partitions=2, alpha=1, partition_by="mean area")
RARE = DirichletPartition(num_partitions=10, alpha=0.001, min_partition_size=2)
THREE = PathologicalPartition(num_partitions=2, num_classes_per_partition=3)
TWENTY = PathologicalPartition(num_partitions=20, num_classes_per_partition=2)
PARTITIONS = [
    (SMALL, IidPartition(num_partitions=21), "num_partitions: 21: | 20 records"),
    (SMALL, SortedPartition(num_partitions=21), "num_partitions: 21: "),
    (SMALL, IidPartition(num_partitions=3, proportions=[1, 2]), "proportions: (1.0, 2.0): | each of the 3"),
    (SMALL, IidPartition(num_partitions=2, proportions=[1, 1e6]), "proportions: (1.0, 1000000.0): | silo 0"),
    (SMALL, SizePartition(partition_sizes=[15, 6]), "partition_sizes: [15, 6]: | sum to 21 | has 20"),
    (SMALL, SortedPartition(num_partitions=2, by="x99"), "by: 'x99': | did you mean 'x9'?"),
    (BREASTS, SortedPartition(num_partitions=2, by="Mean radios"), "by: 'Mean radios' | 'mean radius'?"),
    (BREASTS, AREA, "partition_by: 'mean area': a column of measured numbers has no labels"),
    (LINEAR, SKEWED, "partition_by: 'y': a column of measured"),
    (SMALL, FEW, "min_partition_size: 10: | 3 silos of 10 records | 20"),
    (SMALL, RARE, "alpha: 0.001: | 200 | 2 records"),
    (SMALL, THREE, "num_classes_per_partition: 3: the column has 2 labels"),
    (SMALL, TWENTY, "too few for the 20 silos"),
    (SMALL, NaturalIdPartition(), "partition_by: None: name the column"),
    (SMALL, LabelPairsPartition(), "first: None: list the labels"),
    (PLAIN, LabelPairsPartition(first=[1, 2], second=[2]), "second: '2': a label may stand once"),
    (PLAIN, LabelPairsPartition(first=[11], second=[2]), "first: '11': | did you mean '1'?"),
    (
        BREASTS,
        LabelPairsPartition(first=["malignent"], second=["benign"]),
        "first: 'malignent' | 'malignant'?",
    ),
]


@pytest.mark.parametrize(("data", "partition", "words"), PARTITIONS)
def test_a_bad_partition_is_named_before_and_while_loading(data, partition, words) -> None:
    for attempt in (lambda: outline(data, partition, 0), lambda: load(data, partition, 0, 0)):
        with pytest.raises(InputError) as caught:
            attempt()
        assert caught.value.field.startswith("scenario.partition")
        assert lacking(caught.value, words) == []


def test_an_unknown_silo_is_named() -> None:
    with refused("scenario.partition", "silo-2", "no such silo; did you mean 'silo-02'?"):
        load_silos(SMALL, IidPartition(num_partitions=3), 0, 0, ["silo-2"])


HEAD, GOOD = "age,sex,hospital,chol,outcome", "1,male,a,1,ill"
TABLES = {
    "": "path: | not a readable CSV or Parquet table (Empty CSV file)",
    HEAD: "path: | the table has a header and no records",
    f"{HEAD}\n1,male": "path: | Expected 5 columns, got 2",
    f"{HEAD}s\n{GOOD}": "target: 'outcome' | did you mean 'outcomes'?",
    f"ages,sex,hospital,chol,outcome\n{GOOD}": "schema.age: 'age' | did you mean 'ages'?",
    f"age,sex,hosp,chol,outcome\n{GOOD}": "silo_column: 'hospital' | did you mean 'hosp'?",
    f"{HEAD}\n{GOOD}\n?,male,a,1,ill": "schema.age: None | row 2: no value (1 of 2 records | `fill`",
    f"{HEAD}\n1,,a,1,ill": "schema.sex: None | row 1: no value (1 of 1 records | `fill`",
    f"{HEAD}\n{GOOD}\n1,mael,a,1,ill": "schema.sex: 'mael' | row 2: not a declared category | 'male'?",
    f"{HEAD}\n1,male,a,1,dead": "schema.outcome: 'dead' | row 1: not a declared category",
    f"{HEAD}\n{GOOD}\nold,male,a,1,ill": "schema.age: 'old' | row 2: not a number",
    f"{HEAD}\n1,male,a,-inf,ill": "schema.chol: -inf | row 1: infinite",
    f"{HEAD}\n1e999,male,a,1,ill": "schema.age: inf | row 1: infinite",
    "\x00\x01\x02,\x03\n\x04": "",
}


@pytest.mark.parametrize("text", TABLES)
def test_a_bad_table_is_named(make_csv, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load(make_csv(f"{text}\n" if text else ""), NaturalIdPartition(), 0, 0)
    assert lacking(caught.value, f"scenario.data.{TABLES[text]}") == []


def test_a_file_that_is_no_table_is_named(make_csv, tmp_path) -> None:
    png, fake, latin = tmp_path / "a.png", tmp_path / "a.parquet", tmp_path / "latin.csv"
    png.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe,3\n")
    fake.write_text("age,sex\n1,2\n")
    latin.write_bytes("age,sex,hospital,chol,outcome\n1,male,Köln,1,ill\n".encode("latin-1"))
    for path in (png, fake, latin, tmp_path, tmp_path / "missing.csv"):
        with pytest.raises(InputError, match=r"^scenario\.data\.path: '.*(not a readable|no such file)"):
            load(make_csv(path=path), NaturalIdPartition(), 0, 0)


def test_a_parquet_column_of_lists_is_named(make_csv, tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    columns = {
        "age": [[1], [2]],
        "sex": ["male"] * 2,
        "chol": [1, 2],
        "outcome": ["ill"] * 2,
        "hospital": ["a"] * 2,
    }
    pq.write_table(pa.table(columns), path)
    with refused("scenario.data.schema.age", ANY, "'list", "must hold numbers or texts"):
        load(make_csv(path=path), NaturalIdPartition(), 0, 0)


def test_values_that_overflow_are_named(make_csv) -> None:
    rows = "".join(f"{sign}1.5e308,male,a,1,ill\n" for sign in ("", "-") * 5)
    data = make_csv("age,sex,hospital,chol,outcome\n" + rows, scaling="training_statistics")
    with pytest.raises(
        InputError, match=r"^scenario\.data\.scaling: 'training_statistics': row \d+ has a feature"
    ):
        load(data, NaturalIdPartition(), 0, 0)


def test_a_schema_without_target_or_features_is_named(make_csv, schema) -> None:
    without = {name: column for name, column in schema.items() if name != "outcome"}
    with refused("scenario.data.schema", "outcome", "the target needs an entry"):
        outline(make_csv(schema=without), ONE, 0)
    with refused("scenario.data.schema", ["outcome"], "declare at least one feature"):
        outline(make_csv(schema={"outcome": schema["outcome"]}), ONE, 0)
    schema["outcome"] = {"kind": "category", "categories": ["ill"]}
    with refused("scenario.data.schema.outcome", ANY, "at least two categories"):
        outline(make_csv(schema=schema), ONE, 0)


def test_a_bad_schema_file_is_named(make_csv, tmp_path) -> None:
    path = tmp_path / "schema.yaml"
    cases = {
        "age: {kind: number, lower: 5, upper: 1}": r"schema\.age: .*lower must be below upper",
        "age: {kind: number, lower: 5, uper: 9}": r"schema\.age\.upper: .*Field required",
        "sex: {kind: category, categories: [yes, no]}": r"categories\.0: True: .*YAML reads it as True",
        "just a text": r"scenario\.data\.schema: '.*must hold a mapping",
        "[": r"scenario\.data\.schema: '.*not valid YAML",
    }
    for text, message in cases.items():
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            outline(make_csv(schema=path), ONE, 0)
    with refused("scenario.data.schema", ANY, "no.yaml': cannot be read"):
        outline(make_csv(schema=tmp_path / "no.yaml"), ONE, 0)


COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "number", "lower": 1, "upper": 1}, "lower must be below upper"),
    ({"kind": "number", "lower": 0, "upper": 1, "scale": "log"}, "scale: log needs lower > 0"),
    ({"kind": "number", "lower": 0, "upper": 1, "fill": 2}, "fill must lie in"),
    ({"kind": "number", "lower": 0, "upper": float("inf")}, "finite"),
    ({"kind": "number", "lower": -1.7e308, "upper": 1.7e308}, "lower must be below upper"),
    ({"kind": "category", "categories": []}, "at least one"),
    ({"kind": "category", "categories": ["a", "a"]}, "each named once"),
    ({"kind": "category", "categories": ["abc", "d"], "fill": "abd"}, "did you mean 'abc'"),
    ({"kind": "category", "categories": ["a", 1.5]}, "in quotes"),
    ({"kind": "colour"}, "kind"),
]


@pytest.mark.parametrize(("column", "message"), COLUMNS)
def test_a_bad_column_declaration_is_refused(column, message) -> None:
    section = {"name": "csv", "path": "a.csv", "target": "y", "schema": {"y": column}}
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(DataConfig).validate_python(section)


@pytest.mark.parametrize(
    "section",
    [
        {"name": "iid", "num_partitions": 0},
        {"name": "iid", "num_partitions": 2, "proportions": [1, -1]},
        {"name": "iid", "num_partitions": 2, "proportions": [1, float("nan")]},
        {"name": "size", "partition_sizes": []},
        {"name": "size", "partition_sizes": [3, 0]},
        {"name": "dirichlet", "num_partitions": 2, "alpha": 0},
        {"name": "sorted", "num_partitions": 2, "bye": "y"},
        {"name": "random"},
    ],
)
def test_a_bad_partition_section_is_refused(section) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PartitionConfig).validate_python(section)


@pytest.mark.parametrize("fraction", [1, -0.1, 1.5, float("nan")])
def test_a_test_fraction_is_at_least_0_and_below_1(fraction) -> None:
    with pytest.raises(ValidationError):
        BreastCancer(test_fraction=fraction)
