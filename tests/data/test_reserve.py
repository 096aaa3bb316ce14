"""What a silo puts aside: one division for ever, disjoint from what runs use."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.common.errors import InputError
from fedsim.data.builtin import Digits, Synthetic
from fedsim.data.by_label import DirichletPartition, LabelPairsPartition
from fedsim.data.dataset import Reserve
from fedsim.data.federation import Federation, load, outline
from fedsim.data.partition import IidPartition, Partition, SizePartition, SortedPartition

PARTITIONS: list[Partition] = [
    SizePartition(partition_sizes=(7, 20, 33)),
    SortedPartition(num_partitions=3),
    DirichletPartition(num_partitions=3, alpha=1.0, min_partition_size=4),
]


def halves(partition: Partition, fraction: float, use: str, trial: int) -> Federation:
    data = Synthetic(rows=60, features=4, reserve=Reserve(fraction=fraction, use=use))  # type: ignore[arg-type]
    return load(data, partition, 3, trial)


def rows(features: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in features}


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda partition: partition.name)
@pytest.mark.parametrize("fraction", [0.4, 0.8])
def test_a_record_is_for_ever_in_one_of_three_parts(fraction: float, partition: Partition) -> None:
    whole = load(Synthetic(rows=60, features=4), partition, 3, 0)
    for i, silo in enumerate(whole.silos):
        size = len(silo.train_target) + len(silo.test_target)
        aside = [halves(partition, fraction, "reserved", trial).silos[i] for trial in range(4)]
        rest = [halves(partition, fraction, "rest", trial).silos[i] for trial in range(4)]
        train, score = rows(aside[0].train_features), rows(aside[0].test_features)
        assert len(train) == len(score) == round(fraction * size / 2)
        assert not train & score
        left = (rows(silo.train_features) | rows(silo.test_features)) - train - score
        assert len(left) == size - len(train) - len(score)
        for trial in range(4):
            assert (rows(aside[trial].train_features), rows(aside[trial].test_features)) == (train, score)
            assert rows(rest[trial].train_features) | rows(rest[trial].test_features) == left
        small = len(rest[0].test_target) == 0
        assert (
            small or len({frozenset(rows(one.test_features)) for one in rest}) > 1
        )  # runs divide the rest anew


def test_each_silo_and_seed_has_a_division_of_its_own() -> None:
    def places(seed: int) -> list[list[int]]:
        data = Synthetic(rows=60, features=2, reserve=Reserve(fraction=0.5, use="reserved"))
        aside = load(data, IidPartition(num_partitions=2), seed, 0)
        whole = load(Synthetic(rows=60, features=2), IidPartition(num_partitions=2), seed, 0)
        found = []
        for one, all_of_it in zip(aside.silos, whole.silos, strict=True):
            known = np.sort(np.concatenate([all_of_it.train_features, all_of_it.test_features])[:, 0])
            found.append(np.searchsorted(known, one.train_features[:, 0]).tolist())
        return found

    assert places(0)[0] != places(0)[1]
    assert places(0) != places(1)


@pytest.mark.parametrize("use", ["rest", "reserved"])
def test_the_outline_knows_the_sizes(use: str) -> None:
    data = Digits(reserve=Reserve(fraction=0.3, use=use))  # type: ignore[arg-type]
    told = outline(data, LabelPairsPartition(), 1).sizes
    found = load(data, LabelPairsPartition(), 1, 0)
    assert told == {silo.name: len(silo.train_target) for silo in found.silos}


@pytest.mark.parametrize(("fraction", "aside"), [(0.05, 0), (0.99, 8)])
def test_a_silo_too_small_is_named(fraction: float, aside: int) -> None:
    data = Synthetic(rows=60, reserve=Reserve(fraction=fraction))
    partition = SizePartition(partition_sizes=[8, 40])
    for attempt in (lambda: outline(data, partition, 0), lambda: load(data, partition, 0, 0)):
        with pytest.raises(InputError) as caught:
            attempt()
        assert caught.value.field == "scenario.data.reserve.fraction"
        assert f"silo 'silo-00' would put aside {aside} of its 8 records" in str(caught.value)
