"""The `data` and `partition` sections of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.data.datasets import BreastCancer, Csv, Dataset, Digits, Synthetic
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

AnyData = BreastCancer | Digits | Synthetic | Csv
AnyPartition = (
    IidPartition
    | SizePartition
    | DirichletPartition
    | PathologicalPartition
    | NaturalIdPartition
    | LabelPairsPartition
    | SortedPartition
)
DataConfig = Annotated[AnyData, Field(discriminator="name")]
PartitionConfig = Annotated[AnyPartition, Field(discriminator="name")]

__all__ = [
    "AnyData",
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
