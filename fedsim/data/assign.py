"""Which record belongs to which silo: a function of the partition, the data's labels and the seed alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.assignment import PARTITION, UNUSED, Assignment, require_enough, silo_names
from fedsim.data.by_label import BY, dirichlet, label_pairs, pathological, present_labels
from fedsim.data.config import (
    AnyPartition,
    Csv,
    Dataset,
    DirichletPartition,
    IidPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
    SizePartition,
    SortedPartition,
)
from fedsim.data.source import Ints, Source, resolve
from fedsim.protocol.seeds import generator


def assign(data: Dataset, source: Source, partition: AnyPartition, seed: int) -> Assignment:
    """Divide the records. No record goes to two silos, and no silo is empty."""
    rng = generator("partition", seed, partition.name)
    match partition:
        case IidPartition() | SizePartition():
            return _cut(rng.permutation(source.num_rows), known_counts(source, partition))
        case SortedPartition():
            return _cut(_sorted(source, partition), known_counts(source, partition))
        case DirichletPartition():
            return dirichlet(source, partition, rng)
        case PathologicalPartition():
            return pathological(source, partition, rng)
        case LabelPairsPartition():
            return label_pairs(data, source, partition, rng)
        case NaturalIdPartition():
            return _natural_id(data, source, partition)


def known_counts(source: Source, partition: IidPartition | SizePartition | SortedPartition) -> list[int]:
    """Records per silo where they follow from the row count alone, in the order of the silos' numbers."""
    if isinstance(partition, SizePartition):
        return _given_sizes(partition.partition_sizes, source.num_rows)
    require_enough(source.num_rows, partition.num_partitions)
    return quotas(partition.proportions, partition.num_partitions, source.num_rows)


def quotas(proportions: Sequence[float] | None, count: int, total: int) -> list[int]:
    """Divide `total` records by proportions; what rounding leaves goes to the largest remainders."""
    field = f"{PARTITION}.proportions"
    shares = np.ones(count) if proportions is None else np.array(proportions)
    if len(shares) != count:
        raise InputError(field, proportions, f"expected one positive number for each of the {count} silos")
    shares = shares / shares.max()  # first, since the sum of huge proportions may overflow
    exact = shares / shares.sum() * total
    sizes = np.floor(exact).astype(np.int64)
    remainder = np.round(exact - sizes, 9)  # equal proportions tie in spite of rounding
    sizes[np.argsort(-remainder, kind="stable")[: total - sizes.sum()]] += 1
    if sizes.min() < 1:
        raise InputError(field, proportions, f"silo {sizes.argmin()} gets none of the {total} records")
    return [int(size) for size in sizes]


def _given_sizes(sizes: Sequence[int], total: int) -> list[int]:
    if sum(sizes) > total:
        field = f"{PARTITION}.partition_sizes"
        raise InputError(field, list(sizes), f"they sum to {sum(sizes)}, the data set has {total} records")
    return list(sizes)


def _cut(order: Ints, counts: list[int]) -> Assignment:
    """Give the first records of `order` to the first silo, the next to the second, and so on."""
    owner = np.full(len(order), UNUSED, dtype=np.int64)
    owner[order[: sum(counts)]] = np.repeat(np.arange(len(counts)), counts)
    return Assignment(silo_names(len(counts)), owner)


def _sorted(source: Source, partition: SortedPartition) -> Ints:
    """Row numbers by value; ties keep the order of the records."""
    field = f"{PARTITION}.by"
    keys = source.keys(resolve(source, partition.by, field), field)
    return np.argsort(-keys if partition.descending else keys, kind="stable")


def _natural_id(data: Dataset, source: Source, partition: NaturalIdPartition) -> Assignment:
    column = partition.partition_by or (data.silo_column if isinstance(data, Csv) else None)
    if column is None:
        raise InputError(BY, None, "name the column that says whose record it is")
    labels = present_labels(source, column)
    return Assignment(labels.names, labels.codes)
