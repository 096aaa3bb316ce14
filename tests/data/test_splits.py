"""Training and test records, trial by trial."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import DirichletPartition, LabelPairsPartition
from fedsim.data.dataset import Dataset
from fedsim.data.federation import Federation, SiloSplit, load, load_silos, outline, split, training_size
from fedsim.data.partition import IidPartition, Partition, SortedPartition

CASES: list[tuple[Dataset, Partition]] = [
    (BreastCancer(), SortedPartition(num_partitions=3)),
    (BreastCancer(scaling="training_statistics"), IidPartition(num_partitions=5)),
    (Digits(), LabelPairsPartition()),
    (Digits(), DirichletPartition(num_partitions=6, alpha=1.0)),
]


def arrays(silo: SiloSplit) -> tuple[np.ndarray, ...]:
    return silo.train_features, silo.train_target, silo.test_features, silo.test_target


def equal(a: SiloSplit, b: SiloSplit) -> bool:
    return a.name == b.name and all(np.array_equal(x, y) for x, y in zip(arrays(a), arrays(b), strict=True))


def records(federation: Federation) -> np.ndarray:
    """All rows of features, training and test, sorted."""
    rows = np.concatenate([part for s in federation.silos for part in (s.train_features, s.test_features)])
    return rows[np.lexsort(rows.T)]


def test_training_and_test_records_are_disjoint_and_complete() -> None:
    data = Synthetic(rows=200, features=3)
    federation = load(data, IidPartition(num_partitions=7), 0, 0)
    everything = load(data, IidPartition(num_partitions=1), 5, 5)
    assert len(np.unique(records(federation), axis=0)) == 200
    assert np.array_equal(records(federation), records(everything))


@pytest.mark.parametrize(("data", "partition"), CASES)
def test_silos_loaded_alone_have_identical_rows(data: Dataset, partition: Partition) -> None:
    everything = {silo.name: silo for silo in load(data, partition, 1, 2).silos}
    name = list(everything)[1]
    (alone,) = load_silos(data, partition, 1, 2, [name])
    assert equal(alone, everything[name])
    last = max(everything)
    assert [silo.name for silo in load_silos(data, partition, 1, 2, [last, name])] == [name, last]
    assert load_silos(data, partition, 1, 2, []) == ()


def test_trials_draw_other_splits_of_the_same_silos() -> None:
    first, second = (load(BreastCancer(), SortedPartition(num_partitions=3), 0, trial) for trial in (0, 1))
    for a, b in zip(first.silos, second.silos, strict=True):
        assert len(a.train_target) == len(b.train_target)
        assert not np.array_equal(a.train_features, b.train_features)
        whole_a, whole_b = (np.concatenate([s.train_features, s.test_features]) for s in (a, b))
        assert np.array_equal(whole_a[np.lexsort(whole_a.T)], whole_b[np.lexsort(whole_b.T)])


def test_loading_is_reproducible_and_depends_on_the_seed() -> None:
    first, again, other = (
        load(BreastCancer(), IidPartition(num_partitions=3), seed, 0) for seed in (0, 0, 1)
    )
    assert all(map(equal, first.silos, again.silos))
    assert not any(map(equal, first.silos, other.silos))


def test_every_record_is_tested_equally_often() -> None:
    """Over 4,000 trials a record is held out 0.2 of the time; 6 deviations: false alarm below 1e-6."""
    held_out = np.zeros(10)
    for trial in range(4000):
        held_out[split(np.arange(10), 0.2, 0, trial, "a")[1]] += 1
    assert np.abs(held_out / 4000 - 0.2).max() < 6 * np.sqrt(0.2 * 0.8 / 4000)


def test_a_silo_keeps_at_least_one_training_record() -> None:
    sizes = {
        (n, fraction): training_size(n, fraction) for n in (1, 2, 3, 10) for fraction in (0.01, 0.5, 0.99)
    }
    assert all(1 <= size <= n for (n, _), size in sizes.items())
    assert sizes[10, 0.5] == 5
    assert sizes[1, 0.99] == 1


@pytest.mark.slow
def test_ten_thousand_small_silos_load_in_little_memory() -> None:
    """200,000 records of 11 features are 17.6 MB; the limit is some copies of that and 3,000 bytes a silo."""
    data, partition = Synthetic(rows=200_000), IidPartition(num_partitions=10_000)
    assert len(outline(data, partition, 0).sizes) == len(load(data, partition, 0, 0).silos) == 10_000
    tracemalloc.start()
    load(data, partition, 0, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120e6
