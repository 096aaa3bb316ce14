"""Partitions as a scenario names them; names follow flwr-datasets where it has one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.data.model import Config
from fedsim.data.schema import Label

Share = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
NumPartitions = Annotated[int, Field(ge=1, description="Number of silos.")]
PartitionBy = Annotated[str | None, Field(description="Column that holds the labels; default: the target.")]
Proportions = Annotated[
    tuple[Share, ...] | None,
    Field(description="Relative sizes of the silos, one positive number each; default: equal sizes."),
]


class IidPartition(Config):
    """Records dealt out at random, in equal or given proportions."""

    name: Literal["iid"] = Field("iid", description="The partition's name.")
    num_partitions: NumPartitions
    proportions: Proportions = None


class SizePartition(Config):
    """Records dealt out at random, a given number to each silo."""

    name: Literal["size"] = Field("size", description="The partition's name.")
    partition_sizes: tuple[Count, ...] = Field(
        min_length=1,
        description="Records of each silo, training and test together; records left over are unused.",
    )


class DirichletPartition(Config):
    """Each label's records divided by a draw from Dirichlet(alpha): the smaller alpha, the more skewed."""

    name: Literal["dirichlet"] = Field("dirichlet", description="The partition's name.")
    num_partitions: NumPartitions
    alpha: float = Field(ge=1e-3, le=1e9, description="Concentration: large is near iid, small is skewed.")
    partition_by: PartitionBy = None
    min_partition_size: int = Field(
        10, ge=1, description="The division is drawn again until every silo has this many records."
    )


class PathologicalPartition(Config):
    """Each silo holds a few labels only; a label's records are divided equally among its silos."""

    name: Literal["pathological"] = Field("pathological", description="The partition's name.")
    num_partitions: NumPartitions
    num_classes_per_partition: int = Field(ge=1, description="Labels that each silo holds.")
    partition_by: PartitionBy = None


class NaturalIdPartition(Config):
    """One silo per value of a column, such as the hospital."""

    name: Literal["natural_id"] = Field("natural_id", description="The partition's name.")
    partition_by: str | None = Field(
        None, description="Column that names the silo; default: the table's silo_column."
    )


class LabelPairsPartition(Config):
    """One silo per pair of labels (a, b); a label's records are divided equally among its silos."""

    name: Literal["label_pairs"] = Field("label_pairs", description="The partition's name.")
    first: tuple[Label, ...] | None = Field(None, description="Labels a; default for digits: the even ones.")
    second: tuple[Label, ...] | None = Field(None, description="Labels b; default for digits: the odd ones.")
    partition_by: str | None = Field(
        None, description="Column that holds the labels; default: the target, for digits the digit."
    )


class SortedPartition(Config):
    """Records sorted by a column and cut into consecutive pieces: as heterogeneous as that column allows."""

    name: Literal["sorted"] = Field("sorted", description="The partition's name.")
    num_partitions: NumPartitions
    by: str | None = Field(None, description="Column to sort by; default: the target.")
    proportions: Proportions = None
    descending: bool = Field(False, description="The first silo gets the largest values.")
