"""Which records a silo uses in an ask: drawn by the silo, secret, and addressed by the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.batch import Batch, Fresh, Full, Part, Poisson, Subsample, WithReplacement, check_parts
from fedsim.protocol.plan import Plan
from silos.vault.entropy import Entropy, Purpose
from silos.vault.records import Records
from silos.vault.sums import Block

_AHEAD = 1_000_000  # record numbers that a cohort draws ahead at most (8 MB)

Position = tuple[int, int]  # a place in the plan: (round, ask within the round)


class Batches:
    """Draws a cohort's batches.

    Fresh batches and parts come from one secret permutation a silo, cut at bounds that follow from the plan
    alone (never from a cursor), so that an answer given again uses the same records, and no record is in two
    Fresh batches, or in two parts.
    """

    def __init__(
        self,
        records: Records,
        plan: Plan,
        rounds: Sequence[Iterable[int]],
        names: Sequence[str],
        entropy: Entropy,
        sizes: Sequence[int],
    ) -> None:
        """`sizes`: each member's public number of units; batches are drawn from the units that there are."""
        self._sizes = sizes
        self._records, self._entropy, self._plan = records, entropy, plan
        cut_asks = _cut_asks(plan)
        drawing = records.drawing(range(len(names))) if cut_asks else ()
        bounds = {m: _bounds(cut_asks, rounds[m], records.sizes[m], names[m]) for m in drawing}
        self._bounds = {member: own for member, own in bounds.items() if own}
        cut = list(self._bounds)
        streams = entropy.streams(cut, 0, Purpose.PERMUTATION)
        self._order = {m: s.permutation(records.sizes[m]) for m, s in zip(cut, streams, strict=True)}
        # the last part's blocks: it is asked for in round after round, and gathering takes most of a round
        self._last: tuple[Part, Sequence[int]] | None = None
        self._blocks: list[Block] = []
        self._divisors: dict[Batch, Tensor] = {}
        self._singles: dict[Batch, bool] = {}

    def round(self, members: Sequence[int], round_index: int) -> RoundBatches:
        """The batches of one round."""
        return RoundBatches(self, members, round_index)

    def _divisor(self, batch: Batch, members: Sequence[int]) -> Tensor | None:
        """The public number that each member's sum is divided by, (members, 1); None where all are 1."""
        if self._single(batch):
            return None
        if batch not in self._divisors:
            sizes = {n: batch.size(n) for n in set(self._sizes)}
            divisors = torch.tensor([sizes[n] for n in self._sizes], dtype=torch.float64)
            self._divisors[batch] = divisors.unsqueeze(-1)
        known = self._divisors[batch]
        return known if len(members) == len(known) else known[members]

    def _single(self, batch: Batch) -> bool:
        """Whether every silo's batch is one record."""
        if batch not in self._singles:
            self._singles[batch] = all(batch.size(n) == 1 for n in set(self._sizes))
        return self._singles[batch]

    def _cut(self, member: int, position: Position) -> np.ndarray:
        start, stop = self._bounds[member][position]
        return self._order[member][start:stop]


class RoundBatches:
    """A round's draws, in the order of its asks."""

    def __init__(self, batches: Batches, members: Sequence[int], round_index: int) -> None:
        self._all, self._members, self._round = batches, members, round_index
        self._own = batches._records.drawing(members)
        self._streams: list[np.random.Generator] | None = None
        self._ask = -1
        self._ahead, self._first = np.empty((0, 0, 0), dtype=np.int64), 0

    def next(self, batch: Batch) -> tuple[list[Block], Tensor | None]:
        """The next ask's records, and what each member's sum is divided by, (members, 1); None for 1."""
        self._ask += 1
        records, divisors = self._all._records, self._all._divisor(batch, self._members)
        if isinstance(batch, Full):
            return records.full(self._members), divisors
        if isinstance(batch, Part) and self._all._last == (batch, self._own):
            return self._all._blocks, divisors
        if isinstance(batch, Fresh | Part):
            chosen = [self._all._cut(member, (self._round, self._ask)) for member in self._own]
            blocks = records.batch(self._own, chosen)
            if isinstance(batch, Part):
                self._all._last, self._all._blocks = (batch, self._own), blocks
            return blocks, divisors
        return records.batch(self._own, self._drawn(batch)), divisors

    def _drawn(self, batch: Subsample | WithReplacement | Poisson) -> Sequence[np.ndarray] | np.ndarray:
        """Each silo's record numbers; (silos, 1) as one array where every batch is one record.

        Single records are drawn for many asks at a time. How many changes nothing: integers drawn at once
        are those drawn one by one.
        """
        if self._ask - self._first < len(self._ahead):
            return np.asarray(self._ahead[self._ask - self._first])
        sizes = [self._all._records.sizes[member] for member in self._own]
        if isinstance(batch, Poisson) or not self._all._single(batch):
            return [_draw(stream, batch, n) for stream, n in zip(self._open(), sizes, strict=True)]
        asks = min(self._alike(batch), max(1, _AHEAD // len(self._own)))
        drawn = [stream.integers(n, size=asks) for stream, n in zip(self._open(), sizes, strict=True)]
        self._ahead, self._first = np.stack(drawn, axis=1)[:, :, None], self._ask
        return np.asarray(self._ahead[0])

    def _alike(self, batch: Batch) -> int:
        """Number of consecutive asks, from this one on, with the same batch."""
        asks = self._all._plan.rounds[self._round][self._ask :]
        return sum(1 for _ in takewhile(lambda ask: ask.batch == batch, asks))

    def _open(self) -> list[np.random.Generator]:
        if self._streams is None:
            self._streams = self._all._entropy.streams(self._own, self._round, Purpose.BATCH)
        return self._streams


def _draw(stream: np.random.Generator, batch: Subsample | WithReplacement | Poisson, n: int) -> np.ndarray:
    if isinstance(batch, Poisson):
        return np.flatnonzero(stream.random(n) < batch.fraction)
    size = batch.size(n)
    if isinstance(batch, WithReplacement):
        return stream.integers(n, size=size)
    return stream.integers(n, size=1) if size == 1 else stream.choice(n, size, replace=False, shuffle=False)


def _cut_asks(plan: Plan) -> dict[int, list[tuple[int, Fresh | Part]]]:
    """The asks with fresh batches or parts, by round: [(ask, batch)]."""
    found = {
        r: [(a, ask.batch) for a, ask in enumerate(asks) if isinstance(ask.batch, Fresh | Part)]
        for r, asks in enumerate(plan.rounds)
    }
    return {r: asks for r, asks in found.items() if asks}


def _bounds(
    cut: dict[int, list[tuple[int, Fresh | Part]]], rounds: Iterable[int], n: int, name: str
) -> dict[Position, tuple[int, int]]:
    """Where each fresh batch or part of the silo's own rounds begins and ends in its permutation."""
    bounds: dict[Position, tuple[int, int]] = {}
    start = 0
    # `cost` refuses such a plan too, by its counts alone. This one guards what is drawn: slices past the
    # end of the permutation would be short batches without a word, also where nothing is priced.
    own = [(r, a, batch) for r in rounds for a, batch in cut.get(r, ())]
    try:
        check_parts((batch for _, _, batch in own), n)
    except Refused as refusal:
        raise Refused(f"silo {name!r}: {refusal}") from None
    for r, a, batch in own:
        if isinstance(batch, Part):
            bounds[r, a] = batch.bounds(n)
            continue
        bounds[r, a] = start, start + batch.size(n)
        start += batch.size(n)
    if start > n:
        raise Refused(
            f"silo {name!r}: the plan's fresh batches need {start} units, the silo has {n} "
            "(lower num_rounds or batch.fraction)"
        )
    return bounds
