"""Whose each record of a silo is; no feature or target is known here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedsim.common.errors import Refused
from fedsim.common.seeds import generator
from fedsim.protocol.unit import RECORD, Unit


class Owners(NamedTuple):
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
        """`seeded`, (seed, trial, the silos' names), keys streams that repeat. Refused where a silo's data do
        not say whose its records are, and the unit is not the record.
        """
        if unit == RECORD:
            return ALONE
        given = list(codes)
        known = [own for own in given if own is not None]
        if len(known) < len(given):
            raise Refused(f"unit {unit.name}: a silo's data do not say whose its records are")
        streams = None
        if seeded is not None:
            seed, trial, names = seeded
            streams = [generator("records of a person", seed, trial, name) for name in names]
        return cls(unit, known, streams)


ALONE = Owners(RECORD)
