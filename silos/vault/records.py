"""The records of co-hosted silos, and the clipped sums of their per-record gradients.

Silos of similar size share a block, padded with zero rows: the gradient of a generalised linear
model at a zero feature vector is zero, so padding adds nothing to a sum. That of a network is not: its
blocks always have a mask.

Guarantee of `clipped_sum`: a record's term is made of that record alone, for any problem or module, and
every record adds a vector of L2 norm at most `clip` (up to floating-point rounding, below 1e-12 relative in
float64) to the sum, whatever the record, the points and the clip. So replacing one
record moves the sum by at most 2 clip; in float32 1e-4 of the clip is held back for rounding, in terms and
in their sum (`silos.vault.sums`). A term that is not finite counts as the zero vector, decided
after clipping and before summing: one NaN would otherwise mark the whole answer. Networks
(`silos.vault.network`) keep the same guarantee, with 1e-6 of the clip held back for rounding, in float32 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.protocol.rows import Cohort, Rows
from fedsim.protocol.unit import RECORD, Unit
from silos.vault.layout import Alone, groups, laid_out
from silos.vault.owners import ALONE, Owners
from silos.vault.sums import KEPT, Block, Clip, Seen, bounded, padded, slopes, weighted_sum

if TYPE_CHECKING:  # loaded where units have several records
    from silos.vault.person_sums import Sums


class RowsOfBlock(NamedTuple):
    """The members of a block that a request names, their places in the request, and each one's first row in
    the block's flat tensors, (silos, 1).
    """

    block: Block
    members: list[int]
    places: list[int]
    first: np.ndarray


class Records:
    """All records of a cohort of silos. Only the gate's modules may import this one.

    `drawing`, `shapes` and `clipped_sum` are what a gate asks about members: here each is a silo
    that draws for itself, is sent what all are sent, and has records of its own. `sizes` are each one's
    numbers of units, by which a silo's records are laid out.
    """

    def __init__(
        self,
        silos: Sequence[Rows],
        problem: Problem,
        dtype: torch.dtype,
        owners: Owners = ALONE,
    ) -> None:
        self.unit: Unit = owners.unit
        self.units = Alone()
        if owners.unit != RECORD:
            from silos.vault.person_sums import People

            people = People(owners)
            self.units = people if people.several else self.units
        cohort, self.sizes = self.units.ordered(Cohort.of(silos))
        rows: list[int] = cohort.sizes.tolist()
        blocks = (laid_out(cohort, group, problem, dtype) for group in groups(rows))
        self._blocks = [self.units.labelled(block) for block in blocks]
        self._home = np.empty((2, len(rows)), dtype=np.int64)  # of each silo the block, and the place in it
        for b, block in enumerate(self._blocks):
            self._home[:, block.members] = np.full(len(block.members), b), np.arange(len(block.members))
        self._last: tuple[list[int], list[RowsOfBlock]] = [], []
        self._some: tuple[list[int], list[Block]] = [], []
        self._parted: list[tuple[Block, tuple[Block, Block]]] = []  # of blocks that every full round has

    @property
    def grouped(self) -> bool:
        """Whether every silo's records have groups."""
        return all(block.group is not None for block in self._blocks)

    @property
    def longest(self) -> float:
        """The norm of the longest record."""
        shares = torch.cat([block.inverse_norm.flatten() for block in self._blocks])
        return 1 / float(shares[shares > 0].min()) if bool((shares > 0).any()) else 0.0

    def drawing(self, members: Sequence[int]) -> Sequence[int]:
        """Members that draw batches and noise for these members."""
        return members

    def shapes(self, members: Sequence[int], dimension: int) -> list[tuple[int, ...]]:
        """Shapes that a broadcast to these members may have."""
        return [(dimension,)]

    def clipped_sum(self, problem: Problem, block: Block, points: Sequence[Tensor], clip: Clip) -> Tensor:
        """The members' clipped sums (`clipped_sum`)."""
        return clipped_sum(problem, block, points, clip)

    def unit_sum(
        self,
        terms: Sums | None,
        problem: Problem,
        block: Block,
        points: Sequence[Tensor],
        clip: Clip,
        *,
        size: int,
        seen: Seen | None = None,
    ) -> Tensor:
        """The members' sums over units of several records (`silos.vault.person_sums.by_person`).

        A unit of one record has the term that the record has with unit record, to the bit and in every case:
        also where none has several, and where a sum of one record would be no finite number. So what one
        unit has in several records changes no other unit's term.
        """
        from silos.vault.person_sums import by_person  # loaded where units have several records

        alone, several = self._apart(block)
        single = (terms or self.clipped_sum)(problem, alone, points, clip)
        return single + by_person(terms, problem, several, points, clip, size=size, seen=seen)

    def _apart(self, block: Block) -> tuple[Block, Block]:
        """As the function; made once for the blocks of all records, which are the same in every round."""
        for own, parts in self._parted:
            if own is block:
                return parts
        parts = _apart(block)
        if any(own is block for own in self._blocks):
            self._parted.append((block, parts))
        return parts

    def full(self, members: Sequence[int]) -> list[Block]:
        """Every record of the members."""
        if len(members) == len(self.sizes):
            return self._blocks
        if list(members) != self._some[0]:  # the same silos in every ask of a round
            parts = ((block, [members[place] for place in own]) for block, own in self._by_block(members))
            self._some = list(members), [self._rows(*part) for part in parts]
        return self._some[1]

    def batch(self, drawing: Sequence[int], indices: Sequence[np.ndarray] | np.ndarray) -> list[Block]:
        """The records of each member that draws at its own `indices` (numbers below its n, ragged)."""
        if list(drawing) != self._last[0]:  # the same silos as a rule: a round's asks, and round after round
            self._last = list(drawing), self._parts(drawing)
        rows, owners = self.units.rows(drawing, indices)
        return [
            self.units.numbered(_gather(part, [rows[place] for place in part.places]), owners, part.places)
            for part in self._last[1]
        ]

    def _parts(self, members: Sequence[int]) -> list[RowsOfBlock]:
        parts = []
        for block, places in self._by_block(members):
            own = [members[place] for place in places]
            first = self._home[1, own, None] * block.features.shape[1]
            parts.append(RowsOfBlock(block, own, places, first))
        return parts

    def _by_block(self, members: Sequence[int]) -> list[tuple[Block, list[int]]]:
        """The blocks that have members, and the places of those among these."""
        home = self._home[0, members]
        return [(self._blocks[b], np.flatnonzero(home == b).tolist()) for b in np.unique(home).tolist()]

    def _rows(self, block: Block, members: list[int]) -> Block:
        if members == block.members:
            return block
        rows = torch.from_numpy(self._home[1, members])
        return block.mapped(members, lambda each: each[rows])


def _gather(part: RowsOfBlock, chosen: Sequence[np.ndarray]) -> Block:
    """The chosen rows of a block: whole rows of flat tensors, five times faster than by two indices."""
    block = part.block
    index, drawn = _rectangle(chosen)
    rows = torch.from_numpy((index + part.first).ravel())

    def taken(tensor: Tensor) -> Tensor:
        return tensor.flatten(0, 1).index_select(0, rows).view(*index.shape, *tensor.shape[2:])

    real = None if drawn is None else torch.from_numpy(drawn).to(block.features.dtype)
    keep = real
    if block.mask is not None:
        keep = taken(block.mask) if real is None else real * taken(block.mask)
    return replace(block.mapped(part.members, taken), mask=keep, real=real)


def _apart(block: Block) -> tuple[Block, Block]:
    """The rows of units of one record, as unit record has them; the block with those of others alone."""
    assert block.owner is not None
    real, several = block.records.to(block.target.dtype), block.counts > 1
    places = list(range(len(real)))
    part = RowsOfBlock(block, block.members, places, np.array(places)[:, None] * real.shape[1])
    alone = _gather(part, [np.flatnonzero(own) for own in (real * ~several).numpy()])
    return replace(alone, owner=None), replace(block, real=real * several)


def _rectangle(chosen: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Ragged lists as an array (silos, widest), and 1 where an entry was chosen; None where all were."""
    widths = [len(own) for own in chosen]
    if min(widths) == max(widths) > 0:
        return np.array(chosen), None
    index = padded(chosen, max(1, *widths)).numpy()
    return index, (np.arange(index.shape[1]) < np.array(widths)[:, None]).astype(np.float64)


def clipped_sum(
    problem: Problem, block: Block, points: Sequence[Tensor], clip: Clip, seen: Seen | None = None
) -> Tensor:
    """Sum over the records of clip(term), term = gradient at points[0] minus that at points[1], if given; of
    shape (silos, d), float64.

    Args:
        problem: a linear model gives a record's coefficient, its term is x outer coefficient; see
            `silos.vault.network` for the others.
        block: the records, (silos, rows, ...).
        points: one or two tensors, (d,) or (silos, d).
        clip: bound on a term's norm, a number or (silos, 1); None does not clip (mechanism `none`).
        seen: a simulation's, called with the terms before they are clipped; no gate of a silo has one.
    """
    if not isinstance(problem, GeneralisedLinear):
        from silos.vault.network import network_sum  # layers are loaded where there is a network

        return network_sum(problem, block, points, clip, seen)
    slope = slopes(problem, block, points)
    bound = None if clip is None else clip * KEPT[slope.dtype] * block.inverse_norm
    if bound is not None and isinstance(clip, Tensor):  # infinite for a public silo
        bound = bound.nan_to_num(0.0, inf)  # of its zero records 0
    slope = bounded(slope, bound, block.mask, seen)
    by_output = slope.unsqueeze(1) if slope.dim() == 2 else slope.transpose(1, 2)
    total = weighted_sum(by_output, block.features)  # (silos, outputs, features)
    return total.squeeze(1) if total.shape[1] == 1 else total.transpose(1, 2).flatten(1)
