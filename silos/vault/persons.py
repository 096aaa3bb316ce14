"""A silo's records by person; no feature or target is known here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Order:
    """One silo's records by person: a person's follow one another, persons as they first appear.

    So where all have one record, the order is that of the records.
    """

    rows: np.ndarray  # (n,): the records' places
    counts: np.ndarray  # (persons,): how many records each has

    @classmethod
    def of(cls, codes: np.ndarray) -> Order:
        """The order of records that are these persons'."""
        _, first, code = np.unique(codes, return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(first))[code]
        return cls(np.argsort(number, kind="stable"), np.bincount(number))

    @property
    def numbers(self) -> np.ndarray:
        """(n,): each ordered record's person."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of_persons(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places in the order of the chosen persons' records, and which choice each belongs to."""
        counts = self.counts[chosen]
        before = np.cumsum(self.counts)[chosen] - counts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(before, counts) + within, np.repeat(np.arange(len(chosen)), counts)

    def standing(self, bound: str, stream: np.random.Generator) -> np.ndarray:
        """(n,): of each ordered record, its place in a random order of its person's (`limit`), or how many
        that person has (`smooth`): what its weight follows from at any h.
        """
        counts = self.counts
        if bound == "smooth":
            return np.repeat(counts, counts).astype(np.float64)
        drawn = np.lexsort((stream.random(len(self.rows)), self.numbers))
        place = np.empty(len(drawn))
        place[drawn] = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
        return place
