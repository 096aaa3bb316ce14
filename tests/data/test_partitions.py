"""Who holds which record."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.dataset import Dataset
from fedsim.data.federation import load
from fedsim.data.partition import IidPartition, Partition, SizePartition, SortedPartition

PARTITIONS: list[Partition] = [
    IidPartition(num_partitions=7),
    IidPartition(num_partitions=3, proportions=[1, 2, 5]),
    SizePartition(partition_sizes=[5, 50, 500]),
    DirichletPartition(num_partitions=8, alpha=0.5),
    PathologicalPartition(num_partitions=10, num_classes_per_partition=3),
    NaturalIdPartition(partition_by="digit"),
    NaturalIdPartition(partition_by="digit", equal_sizes=True),
    LabelPairsPartition(),
    LabelPairsPartition(first=[1, 2], second=[3]),
    SortedPartition(num_partitions=9),
]
DIGITS = np.asarray(Digits().open().keys("digit", ""), dtype=int)


def rows_of(data: Dataset, partition: Partition, seed: int = 0) -> dict[str, np.ndarray]:
    return partition.assign(data.open(), seed).rows()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_record_is_in_at_most_one_silo(partition: Partition) -> None:
    rows = np.concatenate(list(rows_of(Digits(), partition).values()))
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < 1797


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_partition_is_a_function_of_the_seed(partition: Partition) -> None:
    first, again, other = (rows_of(Digits(), partition, seed) for seed in (0, 0, 1))
    same = [np.array_equal(first[name], again[name]) for name in first]
    assert all(same)
    if partition.name not in ("natural_id", "sorted"):
        assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_the_partition_is_pinned() -> None:
    """The draw may not change with a library or a machine: published runs name only the seed."""
    rows = rows_of(Synthetic(rows=12), IidPartition(num_partitions=3), seed=7)
    assert {name: mine.tolist() for name, mine in rows.items()} == PINNED


PINNED = {"silo-00": [0, 2, 7, 10], "silo-01": [1, 5, 8, 9], "silo-02": [3, 4, 6, 11]}


def test_pairs_of_digits_make_25_disjoint_silos_of_two_labels() -> None:
    rows = rows_of(Digits(task="parity"), LabelPairsPartition())
    assert list(rows) == sorted(f"{a}+{b}" for a in (0, 2, 4, 6, 8) for b in (1, 3, 5, 7, 9))
    assert sum(map(len, rows.values())) == 1797
    for name, mine in rows.items():
        assert {str(digit) for digit in DIGITS[mine]} == set(name.split("+"))


def test_a_label_is_divided_as_equally_as_possible() -> None:
    for partition in (
        LabelPairsPartition(),
        PathologicalPartition(num_partitions=10, num_classes_per_partition=3),
    ):
        rows = rows_of(Digits(), partition)
        for digit in range(10):
            shares = [np.count_nonzero(DIGITS[mine] == digit) for mine in rows.values()]
            held = [share for share in shares if share]
            assert max(held) - min(held) <= 1


def test_labels_outside_the_pairs_are_unused() -> None:
    rows = rows_of(Digits(), LabelPairsPartition(first=["7"], second=[1, 3]))
    assert list(rows) == ["7+1", "7+3"]
    assert set(DIGITS[np.concatenate(list(rows.values()))]) == {1, 3, 7}


def test_pathological_silos_hold_exactly_so_many_labels() -> None:
    for held in (1, 2, 10):
        rows = rows_of(Digits(), PathologicalPartition(num_partitions=20, num_classes_per_partition=held))
        assert {len(set(DIGITS[mine])) for mine in rows.values()} == {held}


def skew(alpha: float) -> float:
    """Mean total variation distance between a silo's labels and all labels, over five seeds."""
    overall = np.bincount(DIGITS, minlength=10) / len(DIGITS)
    distances = []
    for seed in range(5):
        partition = DirichletPartition(num_partitions=8, alpha=alpha, min_partition_size=1)
        for mine in rows_of(Digits(), partition, seed).values():
            local = np.bincount(DIGITS[mine], minlength=10) / len(mine)
            distances.append(np.abs(local - overall).sum() / 2)
    return float(np.mean(distances))


def test_dirichlet_is_more_skewed_for_smaller_alpha() -> None:
    skews = [skew(alpha) for alpha in (0.1, 0.5, 2.0, 10.0, 1e6)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5
    assert skews[-1] < 0.02


def test_dirichlet_shares_have_the_dirichlet_mean_and_variance() -> None:
    """One label, K silos: E p = 1/K and Var p = (K - 1) / (K^2 (K alpha + 1)), over 2,000 seeds.

    Both lie within more than 6 standard errors (3 % of the variance): false alarm below 1e-6.
    """
    data, alpha, silos = Synthetic(rows=1000, features=1, link="softmax", classes=2), 2.0, 4
    source = data.open()
    codes = source.labels("y", "").codes
    share = []
    for seed in range(2000):
        partition = DirichletPartition(num_partitions=silos, alpha=alpha, min_partition_size=1)
        owner = partition.assign(source, seed).owner
        share.append(np.mean(owner[codes == 0] == 1))
    expected = (silos - 1) / (silos**2 * (silos * alpha + 1))
    assert abs(np.mean(share) - 1 / silos) < 6 * np.sqrt(expected / 2000) + 0.002
    assert 0.75 < np.var(share) / expected < 1.25


def test_dirichlet_keeps_its_smallest_size() -> None:
    partition = DirichletPartition(num_partitions=10, alpha=0.3, min_partition_size=40)
    assert min(len(mine) for mine in rows_of(Digits(), partition).values()) >= 40


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_silos_hold_consecutive_values(descending: bool) -> None:
    data = BreastCancer()
    partition = SortedPartition(num_partitions=6, by="mean area", descending=descending)
    area = data.open().keys("mean area", "")
    pieces = [area[mine] for mine in rows_of(data, partition).values()]
    if descending:
        pieces.reverse()
    assert all(low.max() <= high.min() for low, high in pairwise(pieces))
    assert {len(piece) for piece in pieces} == {94, 95}


def test_sorted_by_the_target_separates_the_classes() -> None:
    federation = load(BreastCancer(), SortedPartition(num_partitions=2, proportions=[212, 357]), 0, 0)
    assert [set(silo.train_target) for silo in federation.silos] == [{0}, {1}]


def test_proportions_set_the_sizes() -> None:
    rows = rows_of(Synthetic(rows=100), IidPartition(num_partitions=3, proportions=[1, 3, 6]))
    assert [len(mine) for mine in rows.values()] == [10, 30, 60]


def test_silo_names_sort_like_their_numbers() -> None:
    names = list(rows_of(Synthetic(rows=120), IidPartition(num_partitions=120)))
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("silo-000", "silo-119")
    assert list(rows_of(Synthetic(rows=120), IidPartition(num_partitions=1))) == ["silo-00"]


def test_equal_sizes_drop_records_of_the_larger_silos_at_random() -> None:
    whole = rows_of(Digits(), NaturalIdPartition(partition_by="digit"))
    equal, other = (
        rows_of(Digits(), NaturalIdPartition(partition_by="digit", equal_sizes=True), seed) for seed in (0, 1)
    )
    smallest = min(map(len, whole.values()))
    for name, rows in whole.items():
        assert len(equal[name]) == smallest
        assert set(equal[name]) <= set(rows)
        kept_most = np.array_equal(equal[name], rows[:smallest]) or np.array_equal(equal[name], other[name])
        assert kept_most == (len(rows) == smallest)


def test_natural_ids_name_their_silos(make_csv) -> None:
    data = make_csv()
    rows = rows_of(data, NaturalIdPartition())
    assert {name: mine.tolist() for name, mine in rows.items()} == {
        "east": [3, 5],
        "north": [0, 2],
        "south": [1, 4],
    }
    by_sex = rows_of(data, NaturalIdPartition(partition_by="sex"))
    assert {name: len(mine) for name, mine in by_sex.items()} == {"female": 3, "male": 3}


def test_the_word_target_stands_for_the_target() -> None:
    by_word = rows_of(BreastCancer(), SortedPartition(num_partitions=3, by="target"))
    by_name = rows_of(BreastCancer(), SortedPartition(num_partitions=3, by="diagnosis"))
    assert all(np.array_equal(by_word[name], by_name[name]) for name in by_name)
