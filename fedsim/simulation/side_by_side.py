"""Several runs side by side on the same records, as one cohort of a gate.

Each run has its own budgets, noise levels and ledgers; batches and noise are drawn once for all of them. Runs
that share records differ in their points and clips, and the records are read once: a run is one more column
of the matrix products. Every record's term is clipped run by run as in `silos.records`, with the same
guarantee; results equal those of the runs alone up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, check, coefficient
from silos.records import Part, Records, clipped_sum
from silos.sums import KEPT, Block, bounded, weighted_sum


def shared_sum(
    problem: Problem, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
) -> Tensor:
    """Arguments and result as `silos.records.clipped_sum`, for a block that several runs share.

    Args:
        block: its `members` are the silos of the first run, those of the second, and so on.
        points: (d,), or (members, d).
        clip: a number, or one for every member, (members, 1).

    Returns:
        (members, d), float64.
    """
    silos, rows = block.target.shape
    copies = len(block.members) // silos
    if copies == 1:
        return clipped_sum(problem, block, points, clip)
    assert isinstance(problem, GeneralisedLinear)
    coefficient = _coefficient(problem, block, points[0])  # (silos, rows, copies[, outputs])
    for other in points[1:]:
        coefficient = coefficient - _coefficient(problem, block, other)
    bound = None
    if clip is not None:
        bound = _per_run(clip, copies) * KEPT[coefficient.dtype] * block.inverse_norm.unsqueeze(-1)
    coefficient = bounded(coefficient, bound, block.mask)
    if rows == 1 and coefficient.dim() == 3:  # one product a number: nothing is added up
        own = torch.empty(copies, silos, problem.dimension, dtype=block.features.dtype)
        coefficient = coefficient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        torch.mul(coefficient.permute(2, 0, 1), block.features.squeeze(1), out=own)
        return own.view(len(block.members), problem.dimension).double()
    columns = coefficient.reshape(silos, rows, -1).transpose(1, 2)
    total = weighted_sum(columns, block.features)
    by_run = total.view(silos, copies, problem.num_outputs, problem.num_features)
    return by_run.permute(1, 0, 3, 2).reshape(len(block.members), problem.dimension)


def _coefficient(problem: GeneralisedLinear, block: Block, point: Tensor) -> Tensor:
    silos, rows = block.target.shape
    copies = len(block.members) // silos
    runs = point.expand(len(block.members), -1).view(copies, silos, problem.num_features, -1)
    columns = runs.permute(1, 2, 0, 3).flatten(2)
    scores = torch.bmm(block.features, columns)
    if problem.num_outputs > 1:
        scores = scores.view(silos, rows, copies, problem.num_outputs)
    target, inverse_norm = block.target.unsqueeze(-1), block.inverse_norm.unsqueeze(-1)
    return coefficient(problem, scores, target, inverse_norm)


def _per_run(clip: float | Tensor, copies: int) -> float | Tensor:
    """The clip as something that broadcasts against (silos, rows, copies)."""
    if not isinstance(clip, Tensor) or clip.dim() < 2:
        return clip
    return clip.view(copies, -1).T.unsqueeze(1)


class SideBySide(Records):
    """Records that `copies` runs share: member c silos + s is silo s in copy c.

    The same silos of every copy answer together, to a broadcast for all, (d,), or one for each, (members, d).

    Raises:
        InputError: the problem's gradients cannot be taken record by record.
        ValueError: several copies of a network's run.
    """

    def __init__(
        self,
        silos: Sequence[tuple[np.ndarray, np.ndarray]],
        problem: Problem,
        dtype: torch.dtype,
        copies: int,
    ) -> None:
        check(problem, dtype)
        super().__init__(silos, problem, dtype)
        if copies > 1 and not isinstance(problem, GeneralisedLinear):
            raise ValueError("networks do not run side by side")
        self._silos, self._copies = len(silos), copies
        self.sizes = self.sizes * copies
        self._blocks = [replace(block, members=self._everywhere(block.members)) for block in self._blocks]

    def clipped_sum(
        self, problem: Problem, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
    ) -> Tensor:
        """See `shared_sum`."""
        return shared_sum(problem, block, points, clip)

    def drawing(self, members: Sequence[int]) -> Sequence[int]:
        """Those of the first copy."""
        return members[: len(members) // self._copies]

    def shapes(self, members: Sequence[int], dimension: int) -> list[tuple[int, ...]]:
        """One broadcast for all members, or one for each."""
        if list(members) != self._everywhere(self.drawing(members)):
            raise Refused("runs side by side answer together")
        return [(dimension,), (len(members), dimension)]

    def full(self, members: Sequence[int]) -> list[Block]:
        """Every record of the members' silos."""
        if len(members) == len(self.sizes):
            return self._blocks
        some = super().full(self.drawing(members))
        return [replace(block, members=self._everywhere(block.members)) for block in some]

    def _parts(self, members: Sequence[int]) -> list[Part]:
        return [part._replace(members=self._everywhere(part.members)) for part in super()._parts(members)]

    def _everywhere(self, members: Sequence[int]) -> list[int]:
        return [copy * self._silos + member for copy in range(self._copies) for member in members]
