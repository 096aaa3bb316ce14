"""Where silos' randomness comes from: noise, batches, permutations and the noise of scores."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    NOISE = 0
    BATCH = 1
    PERMUTATION = 2
    SCORE = 3


class Entropy(Protocol):
    """The random numbers of a cohort of silos.

    The guarantee assumes that nobody outside a silo can predict its numbers, and that streams of different
    silos, rounds and purposes are independent, in this run and from those of every run that it adds up with.
    A round's stream may be a new one each time or begin anew with the same numbers: no two answers are ever
    made of it, since a reply is stored (`silos.ledger`).
    """

    def streams(
        self, members: Iterable[int], round_index: int, purpose: Purpose
    ) -> list[np.random.Generator]:
        """One generator for each member, in their order, to be used before the next call for this purpose.

        Those of other purposes are used in between: a round's noise is drawn after its batches.
        """
        ...
