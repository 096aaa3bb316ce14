"""Records as blocks: silos, or units, of similar size share one, each padded to the same number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsim.problems.exact import sums
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, accepts
from fedsim.protocol.rows import Cohort
from silos.vault.sums import Block, padded_rows

MAX_NORM = 1e12
"""A record longer than this counts as the zero vector. Far below float32's range, so that clip / norm, at
least 1e-18 with the limits' smallest clip, never becomes a subnormal number, whose rounding would let a
clipped term exceed its bound."""

MIN_NORM = 1e-30
"""A shorter record counts as the zero vector: below 3e-39 its inverse norm, and so the bound on its
coefficient, would be infinite in float32."""

_MAX_PADDING = 1.25


Chosen = Sequence[np.ndarray] | np.ndarray  # of each silo the numbers of its units, or of rows


class Alone:
    """A cohort's units where each record is one: what others change (`silos.vault.person_sums.People`)."""

    summed = False  # whether a unit's terms are summed before they are clipped

    def ordered(self, silos: Cohort) -> tuple[Cohort, list[int]]:
        """The records with each unit's in a row, and each silo's number of units."""
        return silos, np.diff(silos.bounds).tolist()

    def labelled(self, block: Block) -> Block:
        """A block of whole silos with each record's unit, and what it weighs there, if that is known."""
        return block

    def weighted(self, block: Block, h: float) -> Block:
        """A block with what clipped terms weigh at this h."""
        return block

    def rows(self, members: Sequence[int], chosen: Chosen) -> tuple[Chosen, Chosen]:
        """The rows of each member's chosen units, and which choice each row belongs to."""
        return chosen, chosen

    def numbered(self, block: Block, owners: Chosen, places: Sequence[int]) -> Block:
        """A batch of the members at these places with each record's choice, as `rows` gives them."""
        return block


def groups(sizes: Sequence[int], most: float = _MAX_PADDING) -> list[list[int]]:
    """Positions grouped by similar size, the largest of a group at most so many times its smallest."""
    different, which = np.unique(sizes, return_inverse=True)
    smallest = different[:1].tolist()
    number = np.zeros(len(different), dtype=np.int64)  # of the group that silos of a size are in
    for i, size in enumerate(different.tolist()):
        if size > most * smallest[-1]:
            smallest.append(size)
        number[i] = len(smallest) - 1
    return [np.flatnonzero(number[which] == group).tolist() for group in range(len(smallest))]


def laid_out(silos: Cohort, group: list[int], problem: Problem, dtype: torch.dtype) -> Block:
    """The records of these positions, which ascend, as a block, each padded to the longest."""
    sizes, own = silos.sizes, silos.rows
    if len(group) < len(sizes):
        own = own.of(np.repeat(np.isin(np.arange(len(sizes)), group), sizes))
    rows = max(1, int(sizes[group].max()))  # of nobody, a row of padding
    network = not isinstance(problem, GeneralisedLinear)
    there = np.arange(rows if network else padded_rows(rows, dtype)) < sizes[group, None]
    features = _filled(own.features, there, dtype, (problem.num_features,))
    target, real = _filled(own.target, there, dtype), torch.from_numpy(there).to(dtype)
    codes = None if own.groups is None else _filled(own.groups, there, torch.int64, (), -1)
    block = Block(group, features, target, target, real if network else None, None if there.all() else real)
    return replace(sanitised(block, problem), group=codes)


def _filled(
    values: np.ndarray, there: np.ndarray, dtype: torch.dtype, each: tuple[int, ...] = (), beyond: int = 0
) -> Tensor:
    """A copy of records, of shape `each`, in the places (silos, rows) that are `there`, row by row."""
    records = torch.as_tensor(values)
    if there.all():
        return records.to(dtype, copy=True).view(*there.shape, *each)
    found = torch.full((*there.shape, *each), beyond, dtype=dtype)
    found.numpy()[there] = records.to(dtype).numpy()
    return found


def sanitised(block: Block, problem: Problem) -> Block:
    """Records whose term could not be finite count as zero vectors from the start.

    A label that the loss is not defined for leaves a record's features as they are, since some terms are to
    depend on labels alone; the mask takes its gradient away.
    """
    wide = block.features.double()
    norm = sums(wide, wide).sqrt_()
    labelled = accepts(problem, block.target) & (block.target.abs() <= MAX_NORM)
    long = (norm <= MAX_NORM) & (norm >= MIN_NORM)
    mask = block.mask
    if mask is not None:
        mask = mask * (labelled & (norm <= MAX_NORM))
    elif not bool(labelled.all()):
        mask = labelled.to(block.features.dtype)
    features = block.features
    if not bool(long.all()):  # else there is no second copy of them
        features = torch.where(long.unsqueeze(-1), features, 0.0)
    inverse = torch.where(long, 1 / norm, 0.0).to(features.dtype)
    target = torch.where(labelled, block.target, 0.0)
    return replace(block, features=features, target=target, inverse_norm=inverse, mask=mask)
