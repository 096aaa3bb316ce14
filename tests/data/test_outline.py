"""The outline says, before any feature is read, what loading will give."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.dataset import Dataset
from fedsim.data.federation import load, outline
from fedsim.data.partition import IidPartition, Partition, SizePartition, SortedPartition
from fedsim.data.registry import PartitionConfig

SOFTMAX = Synthetic(link="softmax", rows=300, features=3, classes=4)
CASES: list[tuple[Dataset, Partition]] = [
    (BreastCancer(), SortedPartition(num_partitions=3)),
    (BreastCancer(), SortedPartition(num_partitions=3, by="worst area", descending=True)),
    (BreastCancer(scaling="none", intercept=False), IidPartition(num_partitions=4)),
    (BreastCancer(), NaturalIdPartition(partition_by="diagnosis")),
    (Digits(), LabelPairsPartition()),
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
    assert told.sizes == {silo.name: len(silo.train_target) for silo in given_.silos}
    assert list(told.sizes) == sorted(told.sizes)
    assert (told.num_features, told.num_classes) == (given_.num_features, given_.num_classes)
    for silo in given_.silos:
        assert silo.train_features.shape == (len(silo.train_target), told.num_features)
        assert silo.test_features.shape == (len(silo.test_target), told.num_features)
        assert min(told.sizes.values()) >= 1
        if told.num_classes:
            assert silo.train_target.dtype == "int64"
            assert set(silo.train_target) <= set(range(told.num_classes))
        else:
            assert silo.train_target.dtype == "float64"


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


def test_sizes_known_in_advance_import_no_heavy_library() -> None:
    """Asked in a fresh process, since this one has long imported everything."""
    code = (
        "import sys\n"
        "from fedsim.data.registry import BreastCancer, SortedPartition\n"
        "from fedsim.data.federation import outline\n"
        "import fedsim.data.arrays, fedsim.data.draft, fedsim.data.federation, fedsim.data.csv_table\n"
        "outline(BreastCancer(), SortedPartition(num_partitions=3), 0)\n"
        "print(sorted({'torch', 'sklearn', 'pyarrow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_registered_sizes_are_the_real_ones() -> None:
    for data in (BreastCancer(), Digits()):
        federation = load(data, IidPartition(num_partitions=1), 0, 0)
        records = sum(len(silo.train_target) + len(silo.test_target) for silo in federation.silos)
        assert records == {"breast_cancer": 569, "digits": 1797}[data.name]
