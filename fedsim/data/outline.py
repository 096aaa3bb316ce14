"""Sizes before data: what an accountant, a dry run or a validator needs, without feature values."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.data.dataset import Dataset
from fedsim.data.fetch import obtain
from fedsim.data.partition import Partition, silo_names
from fedsim.data.prepare import check_components
from fedsim.data.source import Source
from fedsim.data.split import training_records


@dataclass(frozen=True)
class Outline:
    """The public numbers of a federation.

    `sizes` maps silo names, sorted, to numbers of training records, the same in every trial. `num_features`
    counts the intercept. `num_classes` is 0 for regression. Of `num_records` the partition leaves out
    `unused`.
    """

    sizes: dict[str, int]
    num_features: int
    num_classes: int
    num_records: int = 0
    unused: int = 0


def outline(data: Dataset, partition: Partition, seed: int) -> Outline:
    """What `load` will give, without reading feature values; labels and ids only where they are needed.

    Files that are missing are downloaded now, once, before a run has processes.
    """
    obtain(data.wanted)
    source = data.open()
    records = _records(source, partition, seed)
    sizes = {name: training_records(n, data.test_fraction, data.reserve, name) for name, n in records}
    features = check_components(data.pca, source.num_features) + data.intercept
    unused = source.num_rows - sum(n for _, n in records)
    return Outline(sizes, features, source.num_classes, source.num_rows, unused)


def _records(source: Source, partition: Partition, seed: int) -> list[tuple[str, int]]:
    """Records of each silo, training and test together, sorted by name."""
    counts = partition.counts(source)
    if counts is not None:
        return list(zip(silo_names(len(counts)), counts, strict=True))
    assignment = partition.assign(source, seed)
    return sorted(zip(assignment.names, assignment.counts().tolist(), strict=True))
