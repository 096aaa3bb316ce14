"""Partitions: which record belongs to which silo."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.common.seeds import generator
from fedsim.data.source import Ints, Source, resolve

PARTITION = "scenario.partition"
UNUSED = -1

NumPartitions = Annotated[int, Field(ge=1, description="Number of silos.")]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Silo `names[owner[r]]` holds record r; no silo does where owner[r] is UNUSED."""

    names: tuple[str, ...]
    owner: Ints

    def __post_init__(self) -> None:
        twice = sorted({name for name, k in Counter(self.names).items() if k > 1})
        if twice:
            raise InputError(PARTITION, twice[0], "two silos would have this name; rename a label")

    @cached_property
    def counts(self) -> Ints:
        """Records per silo, in the order of `names`."""
        return np.bincount(self.owner[self.owner != UNUSED], minlength=len(self.names))

    @property
    def bounds(self) -> Ints:
        """Where each silo's begin in `every`, and where the last one's end."""
        return np.append(0, np.cumsum(self.counts))

    @cached_property
    def every(self) -> Ints:
        """The records that silos hold: one silo's after another's, in increasing order each."""
        return np.argsort(self.owner, kind="stable")[len(self.owner) - self.counts.sum() :]

    @property
    def by_name(self) -> dict[str, Ints]:
        """Each silo's own."""
        return dict(zip(self.names, np.split(self.every, self.bounds[1:-1]), strict=True))

    def of(self, names: Iterable[str]) -> Assignment:
        """The named silos, sorted by name, and what they hold."""
        kept = tuple(sorted(names))
        place = {name: number for number, name in enumerate(kept)}
        moved = np.array([*(place.get(name, UNUSED) for name in self.names), UNUSED])  # the last: of nobody
        return Assignment(kept, moved[self.owner])


class Partition(Section, ABC):
    """The `partition` section of a scenario; names follow flwr-datasets where it has one."""

    not_private: ClassVar[tuple[str, ...]] = (
        "who holds which record: the partition assigns records by their labels or features",
    )
    """Notices about the partition that the guarantee does not cover."""

    if TYPE_CHECKING:
        name: str  # by which a scenario chooses it; in a subclass a field with one literal value

    def assign(self, source: Source, seed: int) -> Assignment:
        """Divide the records: none is in two silos, and no silo is empty; the silos are sorted by name.
        InputError if impossible.
        """
        dealt = self.deal(source, generator("partition", seed, self.name))
        return dealt.of(dealt.names)

    @abstractmethod
    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """Divide the records with this generator (see `assign`)."""

    def counts(self, source: Source) -> list[int] | None:
        """Records per silo in the order of the silos' numbers, where they follow from the row count alone."""
        return None


def silo_names(count: int) -> tuple[str, ...]:
    """Padded, so that the sorted order is the numbers' order.

    >>> silo_names(2)
    ('silo-00', 'silo-01')
    >>> silo_names(101)[::100]
    ('silo-000', 'silo-100')
    """
    width = max(2, len(str(count - 1)))
    return tuple(f"silo-{k:0{width}d}" for k in range(count))


def require_enough(records: int, silos: int) -> None:
    """InputError if there are more silos than records."""
    if silos > records:
        raise InputError(f"{PARTITION}.num_partitions", silos, f"there are only {records} records or persons")


Share = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Proportions = Annotated[
    tuple[Share, ...] | None,
    Field(description="Relative sizes of the silos, one positive number each; default: equal sizes."),
]


class _Cut(Partition):
    """Consecutive pieces of an order of the records."""

    @abstractmethod
    def counts(self, source: Source) -> list[int]:
        """Length of each piece."""

    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """The first records to the first silo, the next to the second, and so on."""
        return cut(self._order(source, rng), self.counts(source))

    def _order(self, source: Source, rng: np.random.Generator) -> Ints:
        """Row numbers in random order, unless a subclass sorts them."""
        return rng.permutation(source.num_rows)


class IidPartition(_Cut):
    """Records assigned at random, in equal or given proportions."""

    not_private = ()
    name: Literal["iid"] = Field("iid", description="The partition's name.")
    num_partitions: NumPartitions
    proportions: Proportions = None

    def counts(self, source: Source) -> list[int]:
        """Sizes in the given proportions."""
        return quotas(self.proportions, self.num_partitions, source.num_rows)


class SizePartition(_Cut):
    """Records assigned at random, a given number to each silo."""

    not_private = ()
    name: Literal["size"] = Field("size", description="The partition's name.")
    partition_sizes: tuple[Count, ...] = Field(
        min_length=1,
        description="Records of each silo, training and test together; records left over are unused.",
    )

    def counts(self, source: Source) -> list[int]:
        """The given sizes, checked against the number of records."""
        sizes, total = list(self.partition_sizes), source.num_rows
        if sum(sizes) > total:
            hint = f"they sum to {sum(sizes)}, the data set has {total} records or persons"
            raise InputError(f"{PARTITION}.partition_sizes", sizes, hint)
        return sizes


class SortedPartition(_Cut):
    """Records sorted by a column and cut into consecutive pieces: as heterogeneous as that column allows."""

    name: Literal["sorted"] = Field("sorted", description="The partition's name.")
    num_partitions: NumPartitions
    by: str | None = Field(None, description="Column to sort by; default: the target.")
    proportions: Proportions = None
    descending: bool = Field(False, description="The first silo gets the largest values.")

    def counts(self, source: Source) -> list[int]:
        """Sizes in the given proportions."""
        resolve(source, self.by, f"{PARTITION}.by")
        return quotas(self.proportions, self.num_partitions, source.num_rows)

    def _order(self, source: Source, rng: np.random.Generator) -> Ints:
        """Row numbers sorted by value; ties keep the records' order."""
        field = f"{PARTITION}.by"
        keys = source.keys(resolve(source, self.by, field), field)
        return np.argsort(-keys if self.descending else keys, kind="stable")


def quotas(proportions: Sequence[float] | None, count: int, total: int) -> list[int]:
    """Divide `total` records among `count` silos; what rounding leaves goes to the largest remainders.
    InputError for too few records, or proportions for another number of silos.

    >>> quotas(None, 3, 10)
    [4, 3, 3]
    >>> quotas([1, 2, 5], 3, 100)
    [13, 25, 62]
    """
    require_enough(total, count)
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
        hint = f"silo {sizes.argmin()} gets none of the {total} records or persons"
        raise InputError(field, proportions, hint)
    return [int(size) for size in sizes]


def cut(order: Ints, counts: Sequence[int]) -> Assignment:
    """Give the first records of `order` to the first silo, the next to the second, and so on.

    >>> cut(np.array([3, 1, 0, 2]), [1, 2]).owner  # -1: unused
    array([ 1,  1, -1,  0])
    """
    owner = np.full(len(order), UNUSED, dtype=np.int64)
    owner[order[: sum(counts)]] = np.repeat(np.arange(len(counts)), counts)
    return Assignment(silo_names(len(counts)), owner)
