"""Who holds which record."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from fedsim.common.errors import InputError
from fedsim.common.seeds import generator
from fedsim.data.builtin import BreastCancer, Digits, Synthetic
from fedsim.data.by_label import (
    DirichletPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
)
from fedsim.data.dataset import Dataset, Reserve
from fedsim.data.division import divide, training_records
from fedsim.data.federation import Federation, SiloSplit, load, load_silos, outline
from fedsim.data.partition import Assignment, IidPartition, Partition, SizePartition, SortedPartition

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
    return partition.assign(data.open(), seed).by_name


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
    assert [set(silo.train.target) for silo in federation.silos] == [{0}, {1}]


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


# Training and test records, trial by trial.

CASES: list[tuple[Dataset, Partition]] = [
    (BreastCancer(), SortedPartition(num_partitions=3)),
    (BreastCancer(scaling="training_statistics"), IidPartition(num_partitions=5)),
    (Digits(), LabelPairsPartition()),
    (Digits(), DirichletPartition(num_partitions=6, alpha=1.0)),
]


def arrays(silo: SiloSplit) -> tuple[np.ndarray, ...]:
    return silo.train.features, silo.train.target, silo.test.features, silo.test.target


def equal(a: SiloSplit, b: SiloSplit) -> bool:
    return a.name == b.name and all(np.array_equal(x, y) for x, y in zip(arrays(a), arrays(b), strict=True))


def records(federation: Federation) -> np.ndarray:
    """All rows of features, training and test, sorted."""
    rows = np.concatenate([part for s in federation.silos for part in (s.train.features, s.test.features)])
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
    assert list(load_silos(data, partition, 1, 2, [])) == []


def test_trials_draw_other_splits_of_the_same_silos() -> None:
    first, second = (load(BreastCancer(), SortedPartition(num_partitions=3), 0, trial) for trial in (0, 1))
    for a, b in zip(first.silos, second.silos, strict=True):
        assert len(a.train.target) == len(b.train.target)
        assert not np.array_equal(a.train.features, b.train.features)
        whole_a, whole_b = (np.concatenate([s.train.features, s.test.features]) for s in (a, b))
        assert np.array_equal(whole_a[np.lexsort(whole_a.T)], whole_b[np.lexsort(whole_b.T)])


def test_loading_is_reproducible_and_depends_on_the_seed() -> None:
    first, again, other = (
        load(BreastCancer(), IidPartition(num_partitions=3), seed, 0) for seed in (0, 0, 1)
    )
    assert all(map(equal, first.silos, again.silos))
    assert not any(map(equal, first.silos, other.silos))


def test_every_record_is_tested_equally_often() -> None:
    """Over 4,000 trials a record is held out 0.2 of the time; 6 deviations: false alarm below 1e-6."""
    held_out, rows = np.zeros(10), Assignment(("a",), np.zeros(10, dtype=int))
    for trial in range(4000):
        held_out[divide(rows, 0.2, None, 0, trial)[1].every] += 1
    assert np.abs(held_out / 4000 - 0.2).max() < 6 * np.sqrt(0.2 * 0.8 / 4000)


def divided_alone(
    rows: np.ndarray, fraction: float, reserve: Reserve | None, seed: int, trial: int, silo: str
) -> list[np.ndarray]:
    """One silo's training and test rows, as `divide` draws them for all."""
    if reserve is not None:
        half = round(reserve.fraction * len(rows) / 2)
        parts = np.split(generator("reserve", seed, silo).permutation(rows), [half, 2 * half])
        train, score, rows = (np.sort(part) for part in parts)
        if reserve.use == "reserved":
            return [train, score]
    order = generator("split", seed, trial, silo).permutation(rows)
    train_size = max(1, len(rows) - round(fraction * len(rows)))
    return [np.sort(order[:train_size]), np.sort(order[train_size:])]


@pytest.mark.parametrize("use", [None, "rest", "reserved"])
@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.9])
def test_all_silos_are_divided_as_each_is_alone(use: str | None, fraction: float) -> None:
    rng = np.random.default_rng(0)
    reserve = None if use is None else Reserve(fraction=0.4, use=use)
    names = tuple(f"silo {k:02d}" for k in range(40))
    for trial in range(5):
        rows = Assignment(names, np.append(rng.integers(-1, 40, 1500), np.repeat(np.arange(40), 5)))
        both = divide(rows, fraction, reserve, 7, trial)
        assert both[0].counts.tolist() == training_records(names, rows.counts, fraction, reserve).tolist()
        for name, own in rows.by_name.items():
            alone = divided_alone(own, fraction, reserve, 7, trial, name)
            assert [part.by_name[name].tolist() for part in both] == [part.tolist() for part in alone]


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


# What a silo puts aside: one division for ever, disjoint from what runs use.

RESERVED: list[Partition] = [
    SizePartition(partition_sizes=(7, 20, 33)),
    SortedPartition(num_partitions=3),
    DirichletPartition(num_partitions=3, alpha=1.0, min_partition_size=4),
]


def halves(partition: Partition, fraction: float, use: str, trial: int) -> Federation:
    data = Synthetic(rows=60, features=4, reserve=Reserve(fraction=fraction, use=use))
    return load(data, partition, 3, trial)


def rows(features: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in features}


@pytest.mark.parametrize("partition", RESERVED, ids=lambda partition: partition.name)
@pytest.mark.parametrize("fraction", [0.4, 0.8])
def test_a_record_is_for_ever_in_one_of_three_parts(fraction: float, partition: Partition) -> None:
    whole = load(Synthetic(rows=60, features=4), partition, 3, 0)
    for i, silo in enumerate(whole.silos):
        size = len(silo.train.target) + len(silo.test.target)
        aside = [halves(partition, fraction, "reserved", trial).silos[i] for trial in range(4)]
        rest = [halves(partition, fraction, "rest", trial).silos[i] for trial in range(4)]
        train, score = rows(aside[0].train.features), rows(aside[0].test.features)
        assert len(train) == len(score) == round(fraction * size / 2)
        assert not train & score
        left = (rows(silo.train.features) | rows(silo.test.features)) - train - score
        assert len(left) == size - len(train) - len(score)
        for trial in range(4):
            assert (rows(aside[trial].train.features), rows(aside[trial].test.features)) == (train, score)
            assert rows(rest[trial].train.features) | rows(rest[trial].test.features) == left
        small = len(rest[0].test.target) == 0
        assert (
            small or len({frozenset(rows(one.test.features)) for one in rest}) > 1
        )  # runs divide the rest anew


def test_each_silo_and_seed_has_a_division_of_its_own() -> None:
    def places(seed: int) -> list[list[int]]:
        data = Synthetic(rows=60, features=2, reserve=Reserve(fraction=0.5, use="reserved"))
        aside = load(data, IidPartition(num_partitions=2), seed, 0)
        whole = load(Synthetic(rows=60, features=2), IidPartition(num_partitions=2), seed, 0)
        found = []
        for one, all_of_it in zip(aside.silos, whole.silos, strict=True):
            known = np.sort(np.concatenate([all_of_it.train.features, all_of_it.test.features])[:, 0])
            found.append(np.searchsorted(known, one.train.features[:, 0]).tolist())
        return found

    assert places(0)[0] != places(0)[1]
    assert places(0) != places(1)


@pytest.mark.parametrize(("fraction", "aside"), [(0.05, 0), (0.99, 8)])
def test_a_silo_too_small_is_named(fraction: float, aside: int) -> None:
    data = Synthetic(rows=60, reserve=Reserve(fraction=fraction))
    partition = SizePartition(partition_sizes=[8, 40])
    for attempt in (lambda: outline(data, partition, 0), lambda: load(data, partition, 0, 0)):
        with pytest.raises(InputError) as caught:
            attempt()
        assert caught.value.field == "scenario.data.reserve.fraction"
        assert f"silo 'silo-00' would put aside {aside} of its 8 units" in str(caught.value)
