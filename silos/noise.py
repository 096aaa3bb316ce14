"""The vectors of noise for a cohort's answers, of scale 1, as its mechanism draws them.

A silo's noise is a function of its own key, the plan and the dimension, never of the silos it shares a
process with. Rounds that are small are drawn several at a time: a block of rounds shares one stream, in
which every round has its place, so that a round answered again gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsim.mechanisms.mechanism import Mechanism
from fedsim.protocol.plan import Plan
from silos.entropy import Entropy, Purpose

_NUMBERS = 1024  # a silo's numbers in a block of several rounds: enough that a call is cheap beside them
_AHEAD = 4_000_000  # numbers that a cohort draws ahead at most in a long round (32 MB)


class Noise:
    """The noise of a run."""

    def __init__(
        self, mechanism: Mechanism, entropy: Entropy, plan: Plan, silos: int, dimension: int
    ) -> None:
        self._mechanism, self._entropy, self._dimension = mechanism, entropy, dimension
        self._queries = [sum(len(ask.queries) for ask in asks) for asks in plan.rounds]
        self._width = max(1, *self._queries) if self._queries else 1
        self._rounds = max(1, _NUMBERS // (self._width * dimension))
        self._block, self._values, self._ready = -1, np.empty((0, 0, 0)), np.zeros(silos, dtype=bool)

    def round(self, members: Sequence[int], round_index: int) -> RoundNoise:
        """The members' noise of one round."""
        block, place = divmod(round_index, self._rounds)
        if self._rounds == 1:
            streams = self._entropy.streams(members, block, Purpose.NOISE)
            return RoundNoise(self._mechanism, streams, self._queries[round_index], self._dimension)
        self._draw(members, block)
        drawn = self._values[:, place * self._width : (place + 1) * self._width]
        everyone = len(members) == len(self._ready)
        return RoundNoise(self._mechanism, [], 0, self._dimension, drawn if everyone else drawn[members])

    def _draw(self, members: Sequence[int], block: int) -> None:
        """Fill the members' rows of a block, unless they are there."""
        if block != self._block:
            shape = (len(self._ready), self._rounds * self._width, self._dimension)
            self._block, self._values = block, np.empty(shape)
            self._ready[:] = False
        ready = self._ready if len(members) == len(self._ready) else self._ready[list(members)]
        if ready.all():
            return
        missing = [member for member, done in zip(members, ready.tolist(), strict=True) if not done]
        streams = self._entropy.streams(missing, block, Purpose.NOISE)
        self._mechanism.fill(streams, map(self._values.__getitem__, missing))
        self._ready[missing] = True


class RoundNoise:
    """One (members, d) tensor a query, in the plan's order."""

    def __init__(
        self,
        mechanism: Mechanism,
        streams: Sequence[np.random.Generator],
        queries: int,
        dimension: int,
        drawn: np.ndarray | None = None,
    ) -> None:
        self._mechanism, self._streams = mechanism, streams
        self._dimension, self._used = dimension, 0
        self._drawn = np.empty((0, 0, 0)) if drawn is None else drawn
        self._ahead = max(1, min(queries, _AHEAD // max(1, len(streams) * dimension)))

    def next(self) -> Tensor:
        """The next query's noise, float64; how far ahead it is drawn changes nothing."""
        if self._used == self._drawn.shape[1]:
            self._drawn, self._used = np.empty((len(self._streams), self._ahead, self._dimension)), 0
            self._mechanism.fill(self._streams, self._drawn)
        self._used += 1
        return torch.from_numpy(self._drawn[:, self._used - 1])
