"""Records of silos whose units are persons, and sums over persons of the terms that a bound makes of theirs.

Guarantee of `by_person`: a person's term is made of that person's records alone and has norm <= clip, for any
problem, records and number of them. The vector that is measured is the one that is shortened and added, so
that the bound holds whatever rounding it was computed with. One that is not finite, or has a record whose
term is not, counts as zero, all of it. With bounds `limit` and `smooth` a person's records are rows as all
are, and `shares` times their clipped terms add up to a term of norm <= clip (`fedsim.protocol.unit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedsim.problems.kinds import Problem
from silos.layout import groups, laid_out
from silos.persons import Order, Persons
from silos.sums import KEPT, Block, Seen

_MAX_PADDING = 1.5  # more than of silos, since persons differ more, and fewer blocks take less time

NUMBERS = 2**22  # that the terms of the persons who are treated at a time hold, about: 32 MB

Clip = float | Tensor | None
Terms = Callable[[Problem, Block, Sequence[Tensor], Clip], Tensor]


class People:
    """A cohort's records by person; where sums of persons are clipped, also as rows that are persons.

    Attributes:
        silos: features and target of each silo, by person.
        sizes: persons of each.
        summed: whether a person's records are summed before they are clipped; not where all have one.
    """

    def __init__(
        self,
        silos: Sequence[tuple[np.ndarray, np.ndarray]],
        problem: Problem,
        dtype: torch.dtype,
        persons: Persons,
    ) -> None:
        self._unit = unit = persons.unit
        self._orders = [Order.of(codes) for codes in persons.codes]
        self.silos = [(x[own.rows], y[own.rows]) for (x, y), own in zip(silos, self._orders, strict=True)]
        self.sizes = [len(own.counts) for own in self._orders]
        self._shares: list[np.ndarray] | None = None
        self.summed = False
        if unit.bound in ("limit", "smooth"):
            streams = persons.streams or [np.random.default_rng() for _ in silos]
            pairs = zip(self._orders, streams, strict=True)
            self._shares = [own.shares(unit, stream) for own, stream in pairs]
        elif any(own.counts.max(initial=0) > 1 for own in self._orders):
            self.summed = True
            self._lay_out(problem, dtype)

    def _lay_out(self, problem: Problem, dtype: torch.dtype) -> None:
        """Persons as rows of blocks, by how many records they have."""
        self._first = np.cumsum([0, *self.sizes])
        own = list[tuple[np.ndarray, np.ndarray]]()
        for (x, y), order in zip(self.silos, self._orders, strict=True):
            ends = np.cumsum(order.counts)[:-1]
            own += zip(np.split(x, ends), np.split(y, ends), strict=True)
        counts = np.concatenate([order.counts for order in self._orders])
        self._blocks = list[Block]()
        self._home = np.empty((2, len(own)), dtype=np.int64)  # each person's block, and place in it
        for number, group in enumerate(groups(counts.tolist(), _MAX_PADDING)):
            block = laid_out(own, group, problem, dtype)
            share = torch.from_numpy(1 / counts[group])[:, None] if self._unit.bound == "mean" else None
            self._blocks.append(replace(block, share=share))
            self._home[0, group], self._home[1, group] = number, np.arange(len(group))

    def labelled(self, block: Block) -> Block:
        """A block of whole silos with each record's person, and with what it weighs (`Block.share`)."""
        rows = block.target.shape[1]
        if self._shares is None and not self.summed:
            return block
        person = torch.from_numpy(_padded([self._orders[m].numbers for m in block.members], rows))
        if self._shares is None:
            return replace(block, person=person)
        share = torch.from_numpy(_padded([self._shares[m] for m in block.members], rows)).to(
            block.features.dtype
        )
        return replace(
            block, person=person, share=share, mask=share if block.mask is None else block.mask * share
        )

    def rows(
        self, members: Sequence[int], chosen: Sequence[np.ndarray] | np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The rows of the chosen persons of each member, and which choice each row belongs to."""
        found = [self._orders[m].of_persons(np.asarray(own)) for m, own in zip(members, chosen, strict=True)]
        return [rows for rows, _ in found], [persons for _, persons in found]

    def blocks(self, members: Sequence[int], chosen: Sequence[np.ndarray] | np.ndarray | None) -> list[Block]:
        """Blocks whose rows are persons: those chosen of each member, or all; none where there is nobody."""
        if chosen is None:
            chosen = [np.arange(self.sizes[member]) for member in members]
        persons = np.concatenate([self._first[m] + own for m, own in zip(members, chosen, strict=True)])
        owner = np.repeat(np.arange(len(members)), [len(own) for own in chosen])
        number, place = self._home[:, persons]
        found = []
        for i, block in enumerate(self._blocks):
            some = np.flatnonzero(number == i)
            if len(some):
                rows = torch.from_numpy(place[some])
                taken = block.mapped(list(members), partial(torch.index_select, dim=0, index=rows))
                found.append(replace(taken, owner=torch.from_numpy(owner[some])))
        return found


def _padded(values: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Ragged arrays as one of (silos, rows), 0 beyond."""
    found = np.zeros((len(values), rows), dtype=values[0].dtype)
    for i, own in enumerate(values):
        found[i, : len(own)] = own
    return found


def by_person(
    terms: Terms,
    problem: Problem,
    block: Block,
    points: Sequence[Tensor],
    clip: Clip,
    size: int,
    seen: Seen | None = None,
) -> Tensor:
    """Sum over the block's persons of the clip of their terms' sum or mean, (members, size), float64.

    Args:
        terms: sums records' terms by row of a block, unclipped: here a row is a person.
        problem: as `terms` takes it.
        block: whose rows are persons, of the members in `block.owner`.
        points: (d,) or (members, d).
        clip: a number or (members, 1); None does not clip (mechanism `none`).
        size: numbers in a term.
        seen: as for `silos.records.clipped_sum`.
    """
    assert block.owner is not None
    total = torch.zeros(len(block.members), size, dtype=torch.float64)
    for some in _pieces(block.owner, max(1, NUMBERS // size), any(point.dim() == 2 for point in points)):
        owner = block.owner[some]
        part = block.mapped(list(range(len(owner))), partial(_at, some))
        own = [point if point.dim() == 1 else point[int(owner[0])] for point in points]
        found = terms(problem, replace(part, share=None), own, None)
        if part.share is not None:
            found = found * part.share
        norm = torch.linalg.vector_norm(found, dim=1, keepdim=True)
        factor = norm.isfinite().double()
        if clip is not None:
            bound = clip[owner] if isinstance(clip, Tensor) and clip.dim() == 2 else clip
            bound = torch.as_tensor(bound, dtype=torch.float64).expand_as(norm) * KEPT[part.features.dtype]
            if seen is not None:
                seen(norm, bound, factor)
            factor = factor * (bound / norm.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
        total.index_add_(0, owner, torch.where(factor > 0, found, 0.0) * factor.nan_to_num(0.0))
    return total


def _pieces(owner: Tensor, most: int, each: bool) -> Iterator[slice]:
    """Consecutive persons, `most` at a time; those of one silo where each silo has points of its own."""
    starts = [0]
    if each:
        starts += (torch.nonzero(owner[1:] != owner[:-1]).flatten() + 1).tolist()
    for first, last in zip(starts, [*starts[1:], len(owner)], strict=True):
        for some in range(first, last, most):
            yield slice(some, min(some + most, last))


def _at(some: slice, each: Tensor) -> Tensor:
    return each[some]
