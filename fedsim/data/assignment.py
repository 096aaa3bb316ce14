"""The result of a partition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.source import Ints

PARTITION = "scenario.partition"
UNUSED = -1


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


def silo_names(count: int) -> tuple[str, ...]:
    """silo-00, silo-01, ...: padded so that the sorted order is the numbers' order."""
    width = max(2, len(str(count - 1)))
    return tuple(f"silo-{k:0{width}d}" for k in range(count))


def require_enough(records: int, silos: int) -> None:
    """InputError if there are more silos than records."""
    if silos > records:
        raise InputError(f"{PARTITION}.num_partitions", silos, f"there are only {records} records")
