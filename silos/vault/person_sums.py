"""Records of silos whose units are persons, and sums over persons of the terms that a bound makes of theirs.

Guarantee of `by_person`: a person's term is made of that person's records alone and has norm <= clip, for any
problem, records and number of them. The vector that is measured is the one that is shortened and added, so
that the bound holds whatever rounding it was computed with. One that is not finite, or has a record whose
term is not, counts as zero, all of it. With bounds `limit` and `smooth` a person's records are rows as all
are, and shares times their clipped terms add up to a term of norm <= clip (`fedsim.protocol.unit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedsim.problems.exact import sums
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.protocol.rows import Cohort
from silos.vault.layout import Alone, Chosen
from silos.vault.owners import Owners
from silos.vault.persons import Order
from silos.vault.sums import KEPT, Block, Clip, Seen, padded, slopes

NUMBERS = 2**22  # that the terms of the persons who are treated at a time hold, about: 32 MB

Sums = Callable[[Problem, Block, Sequence[Tensor], Clip], Tensor]


class People(Alone):
    """A cohort's persons."""

    def __init__(self, owners: Owners) -> None:
        self._unit = unit = owners.unit
        self._orders = [Order.of(codes) for codes in owners.codes]
        self.summed = not unit.weighted  # else shares of their terms add up
        # if no person has, persons are records, and laid out as these
        self.several = unit.weighted or any(own.counts.max(initial=0) > 1 for own in self._orders)
        self._standing: list[np.ndarray] | None = None
        if unit.weighted:
            streams = owners.streams or [np.random.default_rng() for _ in self._orders]
            orders = zip(self._orders, streams, strict=True)
            self._standing = [own.standing(unit.bound, each) for own, each in orders]

    def ordered(self, silos: Cohort) -> tuple[Cohort, list[int]]:
        """See `Alone`."""
        orders = zip(silos.bounds[:-1], self._orders, strict=True)
        rows = np.concatenate([first + own.rows for first, own in orders])
        return replace(silos, rows=silos.rows.of(rows)), [len(own.counts) for own in self._orders]

    def labelled(self, block: Block) -> Block:
        """See `Alone`; with standings in place of weights if h is asked for (`Order.standing`)."""
        rows = block.target.shape[1]
        block = replace(block, owner=padded([self._orders[m].numbers for m in block.members], rows))
        if self._standing is None:
            return replace(block, mean=self._unit.bound == "mean")
        block = replace(block, share=padded([self._standing[m] for m in block.members], rows, np.inf))
        return self.weighted(block, self._unit.h) if isinstance(self._unit.h, int) else block

    def weighted(self, block: Block, h: float) -> Block:
        """See `Alone`; of a block that has standings."""
        assert block.share is not None
        limited = self._unit.bound == "limit"
        share = (block.share < h).double() / h if limited else 1 / block.share.clamp_min(h)
        share = share.to(block.features.dtype)
        return replace(block, share=share, mask=share if block.mask is None else block.mask * share)

    def numbered(self, block: Block, owners: Chosen, places: Sequence[int]) -> Block:
        """See `Alone`."""
        return replace(block, owner=padded([owners[place] for place in places], block.target.shape[1]))

    def rows(self, members: Sequence[int], chosen: Chosen) -> tuple[Chosen, Chosen]:
        """See `Alone`."""
        found = [self._orders[m].of_persons(np.asarray(own)) for m, own in zip(members, chosen, strict=True)]
        return [rows for rows, _ in found], [owners for _, owners in found]


@dataclass(frozen=True, eq=False)
class _Places:
    """Where the rows of a block's persons are: those of person p at rows[starts[p]:starts[p + 1]].

    Persons are numbered through the silos, as many in each as the largest number there is.
    """

    rows: np.ndarray  # in the flat block
    starts: np.ndarray
    silo: Tensor  # (persons,)

    @classmethod
    def of(cls, block: Block) -> _Places:
        assert block.owner is not None
        most = int(block.owner.max()) + 1
        silos = len(block.owner)
        number = (block.owner + most * torch.arange(silos)[:, None]).flatten().numpy()
        rows = np.arange(number.size) if block.real is None else np.flatnonzero(block.real.flatten().numpy())
        counts = np.bincount(number[rows], minlength=silos * most)
        return cls(rows, np.append(0, counts.cumsum()), torch.arange(silos).repeat_interleave(most))

    def pieces(self, most: int, each: bool) -> Iterator[slice]:
        """Consecutive persons, `most` at a time; those of one silo where each silo has points of its own."""
        count = len(self.silo)
        step = count // (int(self.silo[-1]) + 1) if each else count
        for first in range(0, count, step):
            for some in range(first, first + step, most):
                yield slice(some, min(some + most, first + step))


def by_person(
    terms: Sums | None,
    problem: Problem,
    block: Block,
    points: Sequence[Tensor],
    clip: Clip,
    *,
    size: int,
    seen: Seen | None = None,
) -> Tensor:
    """Sum over the block's persons of the clip of their terms' sum or mean, (members, size), float64.

    `terms` sums records' terms of `size` numbers, unclipped; None for gradients. The block has each record's
    person, whose records follow one another. Points are (d,) or (members, d), the clip a number or
    (members, 1), None (mechanism `none`) for no clip; `seen` is as for `silos.vault.records.clipped_sum`.
    """
    if block.owner is None:
        raise ValueError("records are not laid out by person")
    total, places = torch.zeros(len(block.target), size, dtype=torch.float64), _Places.of(block)
    slope = None
    if terms is None and isinstance(problem, GeneralisedLinear):
        slope = slopes(problem, block, points)
    each = slope is None and any(point.dim() == 2 for point in points)
    for some in places.pieces(max(1, NUMBERS // size), each):
        silo = places.silo[some]
        if slope is not None:
            found = _linear(slope, block, places, some)
        else:
            own = [point if point.dim() == 1 else point[silo[0]] for point in points]
            found = _by_record(terms or _network_sum, problem, block, own, places, some, size)
        if block.mean:
            counts = np.diff(places.starts[some.start : some.stop + 1])
            found = found / torch.from_numpy(counts).clamp_min(1)[:, None]
        norm = sums(found, found).sqrt_().unsqueeze(1)
        finite = norm.isfinite()
        if not bool(finite.all()):
            found, norm = torch.where(finite, found, 0.0), torch.where(finite, norm, 0.0)
        if clip is not None:
            bound = clip[silo] if isinstance(clip, Tensor) and clip.dim() == 2 else clip
            bound = torch.as_tensor(bound, dtype=torch.float64).expand_as(norm) * KEPT[block.features.dtype]
            if seen is not None:
                seen(norm, bound, finite)
            found = found * (bound / norm.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
        total.index_add_(0, silo, found)
    return total


def _linear(slope: Tensor, block: Block, places: _Places, some: slice) -> Tensor:
    """Each person's sum of x outer coefficient, (persons, d), of a linear model: a sparse matrix product."""
    starts = places.starts[some.start : some.stop + 1]
    rows = places.rows[starts[0] : starts[-1]]
    weights = slope if block.mask is None else slope * block.mask[(..., *[None] * (slope.dim() - 2))]
    features = block.features.flatten(0, 1).numpy()
    flat = weights.reshape(len(features), -1).numpy()
    shape = len(starts) - 1, len(features)
    found = [
        torch.from_numpy(csr_matrix((own[rows], rows, starts - starts[0]), shape=shape) @ features)
        for own in flat.T
    ]
    return (found[0] if len(found) == 1 else torch.stack(found, dim=2).flatten(1)).double()


def _network_sum(problem: Problem, block: Block, points: Sequence[Tensor], clip: Clip) -> Tensor:
    from silos.vault.network import network_sum  # layers are loaded where there is a network

    assert not isinstance(problem, GeneralisedLinear)
    return network_sum(problem, block, points, clip)


def _by_record(
    terms: Sums,
    problem: Problem,
    block: Block,
    points: Sequence[Tensor],
    places: _Places,
    some: slice,
    size: int,
) -> Tensor:
    """Each person's sum, (persons, size), a few records at a time, each as a silo of its own."""
    first, last = places.starts[some.start], places.starts[some.stop]
    total = torch.zeros(some.stop - some.start, size, dtype=torch.float64)
    counts = np.diff(places.starts[some.start : some.stop + 1])
    owner = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    step = max(1, NUMBERS // size)
    for start in range(first, last, step):
        rows = torch.from_numpy(places.rows[start : min(start + step, last)])
        alone = block.mapped(list(range(len(rows))), partial(_alone, rows))
        own = replace(alone, owner=None, real=None, whole=True)
        total.index_add_(0, owner[start - first :][: len(rows)], terms(problem, own, points, None))
    return total


def _alone(rows: Tensor, each: Tensor) -> Tensor:
    return each.flatten(0, 1)[rows].unsqueeze(1)
