"""How much the clip takes away, round by round. Simulation only: it is made of records, without noise.

A silo's own gate holds `silos.vault.records.Records`, which report nothing. Those here report to a recorder
in the same process the length of every term before it is clipped. A deployed federation would have to query
for such numbers, and pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedsim.problems.kinds import Problem, check
from fedsim.protocol.rows import Rows
from silos.vault.records import Records, clipped_sum
from silos.vault.sums import Block, Seen

MOST = 500  # terms that a round's median is taken of at most: evenly among the rows of all of them
_HELD = 2**20  # terms that wait to be counted at most


class ClippedTerms(NamedTuple):
    """One host's terms of a round: how many, how many were clipped, and norms over the clip of some."""

    terms: int
    clipped: int
    ratios: np.ndarray


class Recorder:
    """Counts a cohort's terms, which `Watched` reports; its host reports when a round begins."""

    def __init__(self) -> None:
        self._held: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._waiting = 0
        self._round: int | None = 0
        self._parts: dict[int, list[ClippedTerms]] = {}

    def begin(self, round_index: int | None) -> None:
        """Begin a round; None is one that does not count."""
        self._count()
        self._round = round_index

    def __call__(self, lengths: Tensor, bounds: Tensor, mask: Tensor | None) -> None:
        """Terms of one ask; see `silos.vault.sums.Seen`."""
        if self._round is None:
            return
        bound = bounds.numpy().ravel()  # NumPy's small steps take a quarter of torch's time
        counts = (bound > 0) & (bound < np.inf)  # a zero record's term has no length, a public silo no clip
        if mask is not None:
            counts &= mask.numpy().ravel() > 0
        self._held.append((lengths.numpy().ravel(), bound, counts))
        self._waiting += bound.size
        if self._waiting > _HELD:
            self._count()

    def rounds(self) -> dict[int, ClippedTerms]:
        """All rounds so far, by number from 0."""
        self._count()
        return {index: joined(parts) for index, parts in self._parts.items()}

    def _count(self) -> None:
        if not self._held or self._round is None:
            return
        length, bound, counts = map(np.concatenate, zip(*self._held, strict=True))
        self._held, self._waiting = [], 0
        some = slice(None, None, -(-len(length) // MOST))
        few = counts[some]
        with np.errstate(all="ignore"):
            ratios = np.divide(length[some][few], bound[some][few], dtype=np.float64)
            clipped = int(np.count_nonzero((length > bound) & counts))
        self._parts.setdefault(self._round, []).append(
            ClippedTerms(int(np.count_nonzero(counts)), clipped, ratios)
        )


def joined(parts: Sequence[ClippedTerms]) -> ClippedTerms:
    """Several parts as one; more than `MOST` ratios are reduced to as many quantiles."""
    if len(parts) == 1:
        return parts[0]
    ratios = np.concatenate([part.ratios for part in parts])
    if len(ratios) > MOST:
        weights = np.concatenate([np.full(len(p.ratios), p.terms / max(1, len(p.ratios))) for p in parts])
        order = np.argsort(ratios)
        reached = np.cumsum(weights[order]) / weights.sum()
        ratios = ratios[order][np.searchsorted(reached, (np.arange(MOST) + 0.5) / MOST)]
    return ClippedTerms(sum(part.terms for part in parts), sum(part.clipped for part in parts), ratios)


def together(hosts: Iterable[dict[int, ClippedTerms]]) -> dict[int, ClippedTerms]:
    """The rounds of several hosts, whose silos took part in them or not."""
    every = list(hosts)
    return {r: joined([own[r] for own in every if r in own]) for r in sorted(set().union(*every))}


class Watched(Records):
    """Records that tell a recorder the length of their terms."""

    def __init__(self, recorder: Recorder, silos: Sequence[Rows], *how: Any) -> None:
        """As `silos.vault.gate.lay_out`, with a recorder."""
        check(*how[:2])
        super().__init__(silos, *how)
        self._recorder = recorder

    def clipped_sum(
        self, problem: Problem, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
    ) -> Tensor:
        """See `silos.vault.records.clipped_sum`."""
        return clipped_sum(problem, block, points, clip, self._recorder)

    def unit_sum(self, *asked: Any, size: int, seen: Seen | None = None) -> Tensor:
        """See `silos.vault.records.Records.unit_sum`."""
        return super().unit_sum(*asked, size=size, seen=self._recorder)
