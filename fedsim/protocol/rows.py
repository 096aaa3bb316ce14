"""Records as arrays: one silo's rows, and those of several silos, one silo's after another's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Prepared records of one silo, or some of them.

    Groups are codes, of names that are public and not here. Owners are whole numbers, equal where two
    records are one person's in this silo. Both are None where the data do not say.
    """

    features: np.ndarray  # (n, d)
    target: np.ndarray  # (n,): numbers to regress on, or classes
    groups: np.ndarray | None = None  # (n,), -1 for none
    owners: np.ndarray | None = None  # (n,)

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.target)

    def of(self, rows: np.ndarray | slice) -> Rows:
        """Some of them: by place, by mask, or as views by slice."""
        groups, owners = (None if each is None else each[rows] for each in self[2:])
        return Rows(self.features[rows], self.target[rows], groups, owners)

    @classmethod
    def joined(cls, parts: Iterable[Rows]) -> Rows:
        """One part's after another's, where all know; a single one's arrays are not copied."""

        def one(own: tuple[Any, ...]) -> Any:
            if any(each is None for each in own):
                return None
            return np.concatenate(own) if len(own) > 1 else own[0]

        return cls(*map(one, zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Cohort(Sequence[Rows]):
    """The rows of several silos; each one's are views."""

    bounds: np.ndarray  # (silos + 1,): where each silo's begin, and where the last one's end
    rows: Rows

    @classmethod
    def of(cls, silos: Sequence[Rows]) -> Cohort:
        """These silos'."""
        if isinstance(silos, cls):
            return silos
        return cls(np.cumsum([0, *(len(target) for _, target, *_ in silos)]), Rows.joined(silos))

    @property
    def sizes(self) -> np.ndarray:
        """(silos,)."""
        return np.diff(self.bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, silo: Any) -> Any:
        place = range(len(self))[silo]
        return self.rows.of(slice(*self.bounds[place : place + 2].tolist()))
