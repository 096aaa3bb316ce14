"""What a partition is, and what it gives: which record belongs to which silo."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.data.source import Ints, Source
from fedsim.protocol.seeds import generator

PARTITION = "scenario.partition"
UNUSED = -1

NumPartitions = Annotated[int, Field(ge=1, description="Number of silos.")]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Silo `names[owner[r]]` holds record r; nobody does where owner[r] is UNUSED."""

    names: tuple[str, ...]
    owner: Ints

    def __post_init__(self) -> None:
        twice = sorted({name for name, k in Counter(self.names).items() if k > 1})
        if twice:
            raise InputError(PARTITION, twice[0], "two silos would have this name; rename a label")

    def counts(self) -> Ints:
        """Records per silo, in the order of `names`."""
        return np.bincount(self.owner[self.owner != UNUSED], minlength=len(self.names))

    def rows(self) -> dict[str, Ints]:
        """Rows of each silo in increasing order, silos sorted by name."""
        order = np.argsort(self.owner, kind="stable")
        used = order[np.count_nonzero(self.owner == UNUSED) :]
        pieces = np.split(used, np.cumsum(self.counts())[:-1])
        return dict(sorted(zip(self.names, pieces, strict=True)))


class Partition(Section, ABC):
    """The `partition` section of a scenario; names follow flwr-datasets where it has one."""

    not_private: ClassVar[tuple[str, ...]] = (
        "who holds which record: the partition looks at labels or features to deal records out",
    )
    """What the guarantee does not cover in how records are dealt out."""

    if TYPE_CHECKING:
        name: str  # by which a scenario chooses it; in a subclass a field with one literal value

    def assign(self, source: Source, seed: int) -> Assignment:
        """Divide the records. No record goes to two silos, and no silo is empty.

        Raises:
            InputError: they cannot be divided so.
        """
        return self.deal(source, generator("partition", seed, self.name))

    @abstractmethod
    def deal(self, source: Source, rng: np.random.Generator) -> Assignment:
        """As `assign`, which makes the generator from the seed."""

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
        raise InputError(f"{PARTITION}.num_partitions", silos, f"there are only {records} records")
