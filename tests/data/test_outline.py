"""The outline says, before any feature is read, what loading will give."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedsim.common.errors import InputError
from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.dataset import Dataset, Reserve
from fedsim.data.federation import load, outline
from fedsim.data.inspection import inspect
from fedsim.data.partition import IidPartition, Partition, SizePartition, SortedPartition
from fedsim.data.registry import PartitionConfig
from fedsim.data.schema import Reading

SOFTMAX = Synthetic(link="softmax", rows=300, features=3, classes=4)
CASES: list[tuple[Dataset, Partition]] = [
    (BreastCancer(), SortedPartition(num_partitions=3)),
    (BreastCancer(), SortedPartition(num_partitions=3, by="worst area", descending=True)),
    (BreastCancer(scaling="none", intercept=False), IidPartition(num_partitions=4)),
    (BreastCancer(), NaturalIdPartition(partition_by="diagnosis")),
    (Digits(), LabelPairsPartition()),
    (Digits(reserve=Reserve(fraction=0.3, use="rest")), LabelPairsPartition()),
    (Digits(reserve=Reserve(fraction=0.3, use="reserved")), LabelPairsPartition()),
    (Digits(task="parity"), LabelPairsPartition()),
    (
        Digits(task="parity"),
        PathologicalPartition(num_partitions=10, num_classes_per_partition=2, partition_by="digit"),
    ),
    (Digits(), DirichletPartition(num_partitions=10, alpha=0.5)),
    (SOFTMAX, SizePartition(partition_sizes=[1, 2, 3, 100])),
    (Synthetic(link="linear", rows=50), SortedPartition(num_partitions=5, by="x1")),
]


def assert_outline_equals_load(data: Dataset, partition: Partition, seed: int, trial: int = 0) -> None:
    told, given_ = outline(data, partition, seed), load(data, partition, seed, trial)
    assert told.sizes == {silo.name: len(silo.train.target) for silo in given_.silos}
    assert list(told.sizes) == sorted(told.sizes)
    assert (told.num_features, told.num_classes) == (given_.num_features, given_.num_classes)
    for silo in given_.silos:
        assert silo.train.features.shape == (len(silo.train.target), told.num_features)
        assert silo.test.features.shape == (len(silo.test.target), told.num_features)
        assert min(told.sizes.values()) >= 1
        if told.num_classes:
            assert silo.train.target.dtype == "int64"
            assert set(silo.train.target) <= set(range(told.num_classes))
        else:
            assert silo.train.target.dtype == "float64"


@pytest.mark.parametrize(("data", "partition"), CASES)
def test_outline_equals_load(data: Dataset, partition: Partition) -> None:
    assert_outline_equals_load(data, partition, seed=3, trial=1)


def test_outline_equals_load_for_a_table(make_csv) -> None:
    partitions = [
        NaturalIdPartition(),
        SortedPartition(num_partitions=2, by="age"),
        IidPartition(num_partitions=6),
    ]
    for partition in partitions:
        assert_outline_equals_load(make_csv(), partition, seed=0)


@given(
    rows=st.integers(100, 200),
    fraction=st.floats(0.01, 0.99),
    proportions=st.lists(st.floats(0.2, 5), min_size=1, max_size=4),
    name=st.sampled_from(["iid", "sorted"]),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=60)
def test_outline_equals_load_for_any_proportions(rows, fraction, proportions, name, seed) -> None:
    data = Synthetic(rows=rows, features=2, test_fraction=fraction, seed=seed % 5)
    section: dict[str, Any] = {"name": name, "num_partitions": len(proportions), "proportions": proportions}
    partition: Partition = TypeAdapter(PartitionConfig).validate_python(section)
    assert_outline_equals_load(data, partition, seed)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), fraction=st.floats(0.01, 0.99))
@settings(max_examples=40)
def test_outline_equals_load_for_any_sizes(sizes, fraction) -> None:
    data = Synthetic(rows=sum(sizes) + 3, features=2, test_fraction=fraction)
    assert_outline_equals_load(data, SizePartition(partition_sizes=sizes), seed=1)
    told = outline(data, SizePartition(partition_sizes=sizes), seed=1)
    assert list(told.sizes.values()) == [max(1, n - round(fraction * n)) for n in sizes]


@given(silos=st.integers(1, 12), alpha=st.floats(0.5, 100), seed=st.integers(0, 9))
@settings(max_examples=30)
def test_outline_equals_load_for_any_dirichlet_and_pathological(silos, alpha, seed) -> None:
    skewed = DirichletPartition(num_partitions=silos, alpha=alpha, min_partition_size=1)
    assert_outline_equals_load(SOFTMAX, skewed, seed)
    few = PathologicalPartition(num_partitions=silos, num_classes_per_partition=1 + seed % 4)
    assert_outline_equals_load(SOFTMAX, few, seed)


def test_registered_sizes_are_the_real_ones() -> None:
    for data in (BreastCancer(), Digits()):
        federation = load(data, IidPartition(num_partitions=1), 0, 0)
        records = sum(len(silo.train.target) + len(silo.test.target) for silo in federation.silos)
        assert records == {"breast_cancer": 569, "digits": 1797}[data.name]


# The first look at a table counts what is there.

FRAME = pd.DataFrame(
    {
        "id": range(100, 160),
        "age": [None if k % 10 == 0 else 20 + k for k in range(60)],
        "ward": [("north", "south", None)[k % 3] for k in range(60)],
        "day": pd.date_range("2024-01-01", periods=60),
        "nothing": [None] * 60,
        "cost": np.linspace(0, 1, 60),
        "ill": [int(k % 4 == 0) for k in range(60)],
    }
)


@pytest.fixture(params=["csv", "parquet"])
def path(request, tmp_path):
    path = tmp_path / f"table.{request.param}"
    if request.param == "csv":
        FRAME.to_csv(path, index=False, sep=";", na_rep="NA")
    else:
        FRAME.to_parquet(path)
    return path


def test_columns_are_counted(path) -> None:
    found = inspect(path)
    assert (found.records, found.target, found.silos) == (60, None, None)
    columns = {column.name: column for column in found.columns}
    assert list(columns) == list(FRAME.columns)
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "id": "number",
        "age": "number",
        "ward": "category",
        "day": "date",
        "nothing": "empty",
        "cost": "number",
        "ill": "number",
    }
    assert {name: column.missing for name, column in columns.items() if column.missing} == {
        "age": 6,
        "ward": 20,
        "nothing": 60,
    }
    assert (columns["age"].lower, columns["age"].upper, columns["age"].distinct) == (21, 79, 54)
    assert columns["ward"].values == {"north": 20, "south": 20}
    assert {name for name, column in columns.items() if column.remark} == {"id", "day", "nothing"}


def test_a_class_is_balanced_within_each_silo(path) -> None:
    found = inspect(path, "ill", "ward")
    assert found.target is not None
    assert found.target.classes == {"0": 45, "1": 15}
    assert found.silos is not None
    assert found.silos.without == 20
    assert [(silo.name, silo.records, silo.classes) for silo in found.silos.sizes] == [
        ("north", 20, {"0": 15, "1": 5}),
        ("south", 20, {"0": 15, "1": 5}),
    ]


def test_a_number_has_quantiles_and_means(path) -> None:
    found = inspect(path, "cost", "ward")
    assert found.target is not None
    assert found.silos is not None
    assert found.target.mean == pytest.approx(0.5)
    assert list((found.target.quantiles or {}).values()) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    wards = FRAME.groupby("ward")["cost"].mean()
    assert [silo.mean for silo in found.silos.sizes] == pytest.approx(list(wards))


def test_a_file_for_each_silo_has_sizes_without_a_column(tmp_path) -> None:
    for name, count in (("a", 3), ("b", 5)):
        FRAME.head(count).to_csv(tmp_path / f"{name}.csv", index=False)
    found = inspect([tmp_path / "a.csv", tmp_path / "b.csv"], "ill")
    assert found.silos is not None
    assert [(silo.name, silo.records) for silo in found.silos.sizes] == [("a", 3), ("b", 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "il"}, r"^target: 'il'.*did you mean 'ill'"),
        ({"silo": "wards"}, r"^silo: 'wards'.*did you mean 'ward'"),
        ({"reading": Reading(delimiter="|")}, None),
    ],
)
def test_a_column_that_is_not_there_is_named(path, options, message) -> None:
    if message is None:
        assert len(inspect(path, **options).columns) in (1, len(FRAME.columns))  # Parquet has no delimiter
        return
    with pytest.raises(InputError, match=message):
        inspect(path, **options)
