"""The `data` and `partition` sections of a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from fedsim.data.datasets import BreastCancer, Csv, Dataset, Digits, Synthetic, data_sets
from fedsim.data.partitions import (
    DirichletPartition,
    IidPartition,
    LabelPairsPartition,
    NaturalIdPartition,
    PathologicalPartition,
    SizePartition,
    SortedPartition,
)
from fedsim.data.schema import CategoryColumn, NumberColumn

AnyPartition = (
    IidPartition
    | SizePartition
    | DirichletPartition
    | PathologicalPartition
    | NaturalIdPartition
    | LabelPairsPartition
    | SortedPartition
)
if TYPE_CHECKING:
    DataConfig = Dataset
else:
    DataConfig = Annotated[Union[tuple(data_sets().values())], Field(discriminator="name")]  # noqa: UP007
PartitionConfig = Annotated[AnyPartition, Field(discriminator="name")]

__all__ = [
    "AnyPartition",
    "BreastCancer",
    "CategoryColumn",
    "Csv",
    "DataConfig",
    "Dataset",
    "Digits",
    "DirichletPartition",
    "IidPartition",
    "LabelPairsPartition",
    "NaturalIdPartition",
    "NumberColumn",
    "PartitionConfig",
    "PathologicalPartition",
    "SizePartition",
    "SortedPartition",
    "Synthetic",
]
