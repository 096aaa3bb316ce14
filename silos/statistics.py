"""The per-record functions a silo owns, clipped and summed.

Guarantee: a record's term is made of that record alone, whoever wrote the problem or the module, and every
record adds a vector of L2 norm at most `clip` (up to floating-point rounding, below
1e-12 relative in float64) to the sum, whatever the record, the points and the clip. So replacing one
record moves the sum by at most 2 clip; in float32 1e-4 of the clip is held back for rounding, in terms and
in their sum (`silos.sums`). A term that is not finite counts as the zero vector, decided
after clipping and before summing: one NaN would otherwise mark the whole answer. Networks
(`silos.network`) keep the same guarantee, with 1e-6 of the clip held back for rounding, in float32 too.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedsim.problems import linear_records
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from silos.network import network_sum
from silos.sums import KEPT, Block, Seen, bounded, weighted_sum


def clipped_sum(
    problem: Problem,
    block: Block,
    points: Sequence[Tensor],
    clip: float | Tensor | None,
    seen: Seen | None = None,
) -> Tensor:
    """Sum over the records of clip(term), term = gradient at points[0] minus that at points[1], if given.

    Args:
        problem: a linear model gives a record's coefficient, its term is x outer coefficient; see
            `silos.network` for the others.
        block: the records, (silos, rows, ...).
        points: one or two tensors, (d,) or (silos, d).
        clip: bound on a term's norm, a number or (silos, 1); None does not clip (mechanism `none`).
        seen: a simulation's, told the terms before they are clipped; no gate of a silo has one.

    Returns:
        (silos, d), float64.
    """
    if isinstance(problem, NeuralNetwork):
        return network_sum(problem, block, points, clip, seen)
    coefficient = _coefficient(problem, block, points[0])
    for other in points[1:]:
        coefficient = coefficient - _coefficient(problem, block, other)
    bound = None if clip is None else clip * KEPT[coefficient.dtype] * block.inverse_norm
    coefficient = bounded(coefficient, bound, block.mask, seen)
    by_output = coefficient.unsqueeze(1) if coefficient.dim() == 2 else coefficient.transpose(1, 2)
    return _row_major(weighted_sum(by_output, block.features))


def _coefficient(problem: GeneralisedLinear, block: Block, point: Tensor) -> Tensor:
    scores = GeneralisedLinear.scores(
        problem, block.features, point
    )  # whatever the problem makes of `scores`
    return linear_records.coefficient(problem, scores, block.target, block.inverse_norm)


def _row_major(product: Tensor) -> Tensor:
    """(silos, outputs, features) as (silos, features x outputs)."""
    return product.squeeze(1) if product.shape[1] == 1 else product.transpose(1, 2).flatten(1)
