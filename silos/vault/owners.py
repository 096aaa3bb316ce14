"""Whose each record of a silo is, and units that are records; no feature or target is known here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.common.seeds import generator
from fedsim.protocol.unit import RECORD, Unit


@dataclass(frozen=True, eq=False)
class Owners:
    """Whose the records are: of each silo (n,) whole numbers, equal where two records are one unit's; none
    where each record is a unit.

    `streams` choose the records that count with bound `limit`, one a silo; by default the operating system's.
    """

    unit: Unit
    codes: Sequence[np.ndarray] = ()
    streams: Sequence[np.random.Generator] | None = None

    @classmethod
    def of(
        cls,
        unit: Unit,
        codes: Iterable[np.ndarray | None],
        seeded: tuple[int, int, Sequence[str]] | None = None,
    ) -> Owners:
        """`seeded`, (seed, trial, the silos' names), keys streams that repeat."""
        if unit == RECORD:
            return ALONE
        streams = None
        if seeded is not None:
            seed, trial, names = seeded
            streams = [generator("records of a person", seed, trial, name) for name in names]
        return cls(unit, [own for own in codes if own is not None], streams)


ALONE = Owners(RECORD)


@dataclass(frozen=True, eq=False)
class Order:
    """One silo's records by unit: a unit's follow one another, units as they first appear.

    So where all have one record, the order is that of the records.
    """

    rows: np.ndarray  # (n,): the records' places
    counts: np.ndarray  # (units,): how many records each has

    @classmethod
    def of(cls, codes: np.ndarray) -> Order:
        """The order of records that are these units'."""
        _, first, code = np.unique(codes, return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(first))[code]
        return cls(np.argsort(number, kind="stable"), np.bincount(number))

    @property
    def numbers(self) -> np.ndarray:
        """(n,): each ordered record's unit."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of_units(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places in the order of the chosen units' records, and which choice each belongs to."""
        counts = self.counts[chosen]
        before = np.cumsum(self.counts)[chosen] - counts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(before, counts) + within, np.repeat(np.arange(len(chosen)), counts)

    def standing(self, bound: str, stream: np.random.Generator) -> np.ndarray:
        """(n,): of each ordered record, its place in a random order of its unit's (`limit`), or how many
        that one has (`smooth`): what its weight follows from at any h.
        """
        counts = self.counts
        if bound == "smooth":
            return np.repeat(counts, counts).astype(np.float64)
        drawn = np.lexsort((stream.random(len(self.rows)), self.numbers))
        place = np.empty(len(drawn))
        place[drawn] = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
        return place
