"""Clipped sums for several runs side by side on the same records, for simulation.

The runs differ in their points and clips, the records are read once: a run is one more column of the
matrix products. Every record's term is clipped run by run as in `silos.statistics`, with the same
guarantee; results equal those of the runs alone up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.problems import linear_records
from fedsim.problems.glm import GeneralisedLinear
from silos.records import Block
from silos.sums import KEPT, bounded, weighted_sum


def folded_sum(
    problem: GeneralisedLinear, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
) -> Tensor:
    """Arguments and result as `silos.statistics.clipped_sum`, for `copies` runs of the block's silos.

    Args:
        points: (d,), or (copies silos, d), runs first.
        clip: a number, or one for every member, (copies silos, 1).

    Returns:
        (copies silos, d), float64.
    """
    coefficient = _coefficient(problem, block, points[0])  # (silos, rows, copies[, outputs])
    for other in points[1:]:
        coefficient = coefficient - _coefficient(problem, block, other)
    bound = None
    if clip is not None:
        bound = _per_run(clip, block) * KEPT[coefficient.dtype] * block.inverse_norm.unsqueeze(-1)
    coefficient = bounded(coefficient, bound, block.mask)
    silos, rows = block.target.shape
    columns = coefficient.reshape(silos, rows, -1).transpose(1, 2)
    total = weighted_sum(columns, block.features)
    by_run = total.view(silos, block.copies, problem.num_outputs, problem.num_features)
    return by_run.permute(1, 0, 3, 2).reshape(block.copies * silos, problem.dimension)


def _coefficient(problem: GeneralisedLinear, block: Block, point: Tensor) -> Tensor:
    silos, rows = block.target.shape
    runs = point.expand(block.copies * silos, -1).view(block.copies, silos, problem.num_features, -1)
    columns = runs.permute(1, 2, 0, 3).reshape(silos, problem.num_features, -1)
    scores = torch.bmm(block.features, columns)
    if problem.num_outputs > 1:
        scores = scores.view(silos, rows, block.copies, problem.num_outputs)
    target, inverse_norm = block.target.unsqueeze(-1), block.inverse_norm.unsqueeze(-1)
    return linear_records.coefficient(problem, scores, target, inverse_norm)


def _per_run(clip: float | Tensor, block: Block) -> float | Tensor:
    """The clip as something that broadcasts against (silos, rows, copies)."""
    if not isinstance(clip, Tensor) or clip.dim() < 2:
        return clip
    return clip.view(block.copies, -1).T.unsqueeze(1)
