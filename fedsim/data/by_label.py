"""Partitions by label: each label's records go to the silo of its name, or are divided among some silos."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError, suggest
from fedsim.data.partition import (
    PARTITION,
    UNUSED,
    Assignment,
    NumPartitions,
    Partition,
    require_enough,
    silo_names,
)
from fedsim.data.schema import Label
from fedsim.data.source import NO_LABEL, Ints, Labels, Source, require_labels, resolve

BY = f"{PARTITION}.partition_by"
ATTEMPTS = 200
Sides = tuple[tuple[str, ...], tuple[str, ...]]  # the labels a and b of pairs (a, b)
_WHERE_TO = (
    "complete them, or say in the partition section where they go: `without_silo: drop`, or "
    "`without_silo: NAME` for a silo of that name"
)
PartitionBy = Annotated[str | None, Field(description="Column that holds the labels; default: the target.")]


class NaturalIdPartition(Partition):
    """One silo per value of a column, such as the hospital."""

    not_private = ()
    name: Literal["natural_id"] = Field("natural_id", description="The partition's name.")
    partition_by: str | None = Field(
        None, description="Column that names the silo; default: the table's silo_column."
    )
    without_silo: Label = Field(
        "error",
        description="Records that have no value there: error, drop (no silo holds them), or the name of the "
        "silo that gets them.",
    )
    equal_sizes: bool = Field(
        False, description="Drop records at random until every silo has as many as the smallest."
    )

    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """Assign by value; the generator is used for `equal_sizes` alone."""
        dealt = self.homes(source)
        return levelled(dealt, rng) if self.equal_sizes else dealt

    def column(self, source: Source) -> str:
        """The column that names the silos."""
        column = self.partition_by or source.silo_column
        if column is None:
            raise InputError(BY, None, "name the column that says whose record it is")
        return resolve(source, column, BY)

    def homes(self, source: Source) -> Assignment:
        """Who has which record before sizes are made equal."""
        column = self.column(source)
        labels = _present(source.labels(column, BY))
        if self.without_silo == "error":
            require_labels(labels.codes, column, BY, _WHERE_TO)
        if not labels.names:
            raise InputError(BY, column, "no record has a value there")
        without = labels.codes == NO_LABEL
        if self.without_silo in ("error", "drop") or not without.any():
            return Assignment(labels.names, np.where(without, UNUSED, labels.codes))
        names = tuple(dict.fromkeys([*labels.names, self.without_silo]))
        return Assignment(names, np.where(without, names.index(self.without_silo), labels.codes))


def levelled(dealt: Assignment, rng: np.random.Generator) -> Assignment:
    """Every silo keeps as many records, drawn at random, as the smallest has; the others are unused."""
    smallest, owner = dealt.counts.min(), dealt.owner.copy()
    for silo in range(len(dealt.names)):
        owner[rng.permutation(np.flatnonzero(dealt.owner == silo))[smallest:]] = UNUSED
    return Assignment(dealt.names, owner)


class DirichletPartition(Partition):
    """Each label's records divided by a draw from Dirichlet(alpha): the smaller alpha, the more skewed."""

    name: Literal["dirichlet"] = Field("dirichlet", description="The partition's name.")
    num_partitions: NumPartitions
    alpha: float = Field(ge=1e-3, le=1e9, description="Concentration: large is near iid, small is skewed.")
    partition_by: PartitionBy = None
    min_partition_size: int = Field(
        10, ge=1, description="The division is drawn again until every silo has this many records."
    )

    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """Draw label by label and anew until the smallest silo has enough records."""
        labels, silos = present_labels(source, self.partition_by), self.num_partitions
        smallest = self.min_partition_size
        require_enough(source.num_rows, silos)
        if silos * smallest > source.num_rows:
            limit = f"{silos} silos of {smallest} records need more than the {source.num_rows} there are"
            raise InputError(f"{PARTITION}.min_partition_size", smallest, limit)
        rows, owner = _shuffled_rows(labels, rng), np.empty(source.num_rows, dtype=np.int64)
        for _ in range(ATTEMPTS):
            for members in rows:  # m records are cut at floor(m cumsum(p)) with p ~ Dirichlet(alpha)
                parts = np.cumsum(rng.dirichlet(np.full(silos, self.alpha)))
                ends = np.floor(parts / parts[-1] * len(members))
                owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
            drawn = Assignment(silo_names(silos), owner)
            if drawn.counts.min() >= smallest:
                return drawn
        cure = "raise it, or lower min_partition_size"
        hint = f"no draw of {ATTEMPTS} gave each silo {smallest} records; {cure}"
        raise InputError(f"{PARTITION}.alpha", self.alpha, hint)


class PathologicalPartition(Partition):
    """Each silo holds a few labels only; a label's records are divided equally among its silos."""

    name: Literal["pathological"] = Field("pathological", description="The partition's name.")
    num_partitions: NumPartitions
    num_classes_per_partition: int = Field(ge=1, description="Labels that each silo holds.")
    partition_by: PartitionBy = None

    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """Deal shuffled labels round and round, so that all are held about equally often."""
        labels, silos = present_labels(source, self.partition_by), self.num_partitions
        held = self.num_classes_per_partition
        require_enough(source.num_rows, silos)
        if held > len(labels.names):
            limit = f"the column has {len(labels.names)} labels"
            raise InputError(f"{PARTITION}.num_classes_per_partition", held, limit)
        deck = np.resize(rng.permutation(len(labels.names)), silos * held).reshape(silos, held)
        holders = [np.flatnonzero((deck == code).any(axis=1)) for code in range(len(labels.names))]
        return _share_out(labels, holders, silo_names(silos), rng)


class LabelPairsPartition(Partition):
    """One silo per pair of labels (a, b); a label's records are divided equally among its silos."""

    name: Literal["label_pairs"] = Field("label_pairs", description="The partition's name.")
    first: tuple[Label, ...] | None = Field(None, description="Labels a; default for digits: the even ones.")
    second: tuple[Label, ...] | None = Field(None, description="Labels b; default for digits: the odd ones.")
    partition_by: str | None = Field(
        None, description="Column that holds the labels; default: the target, for digits the digit."
    )

    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """A record goes to one of the silos whose pair has its label."""
        column = source.label_column if self.partition_by is None else self.partition_by
        labels = present_labels(source, column)
        first, second = self._sides(source.label_pairs if column == source.label_column else ((), ()))
        for side, wanted in (("first", first), ("second", second)):
            for name in wanted:
                if name not in labels.names:
                    hint = f"no record has this label; {suggest(name, labels.names)}"
                    raise InputError(f"{PARTITION}.{side}", name, hint)
        pairs = [(a, b) for a in first for b in second]
        held = ([k for k, pair in enumerate(pairs) if name in pair] for name in labels.names)
        holders = [np.array(each, dtype=np.int64) for each in held]
        return _share_out(labels, holders, tuple(f"{a}+{b}" for a, b in pairs), rng)

    def _sides(self, default: Sides) -> Sides:
        first, second = self.first or default[0], self.second or default[1]
        for side, labels in (("first", first), ("second", second)):
            if not labels:
                raise InputError(f"{PARTITION}.{side}", None, "list the labels of this side of the pairs")
        twice = sorted({name for name in first + second if (first + second).count(name) > 1})
        if twice:
            raise InputError(f"{PARTITION}.second", twice[0], "a label may stand once, in first or in second")
        return first, second


def present_labels(source: Source, column: str | None) -> Labels:
    """The labels that records have, renumbered without gaps; InputError where a record has none."""
    name = resolve(source, column, BY)
    labels = _present(source.labels(name, BY))
    require_labels(labels.codes, name, BY)
    return labels


def _present(labels: Labels) -> Labels:
    """The labels without names that no record has, renumbered."""
    found = np.unique(labels.codes[labels.codes != NO_LABEL])
    codes = np.where(labels.codes == NO_LABEL, NO_LABEL, np.searchsorted(found, labels.codes))
    return Labels(codes.astype(np.int64), tuple(labels.names[k] for k in found))


def _shuffled_rows(labels: Labels, rng: np.random.Generator) -> list[Ints]:
    """Row numbers of each label, in random order."""
    pieces = np.split(np.argsort(labels.codes, kind="stable"), np.cumsum(np.bincount(labels.codes))[:-1])
    return [rng.permutation(piece) for piece in pieces]


def _share_out(
    labels: Labels, holders: list[Ints], names: tuple[str, ...], rng: np.random.Generator
) -> Assignment:
    """Divide each label's shuffled records among its holders, sizes differing by at most one."""
    owner = np.full(len(labels.codes), UNUSED, dtype=np.int64)
    for name, members, silos in zip(labels.names, _shuffled_rows(labels, rng), holders, strict=True):
        if len(silos) > len(members):
            limit = f"{len(members)} records have this label, too few for the {len(silos)} silos that hold it"
            raise InputError(PARTITION, name, limit)
        if len(silos):
            owner[members] = np.sort(np.resize(silos, len(members)))
    return Assignment(names, owner)
