"""Terms by group: the statistics `joint` and `costed_gradient`. No silo tells anybody a record's group.

Guarantee of `joint`: a record's term has entries of at least 0 that sum to at most 1, whatever the problem
says that its probabilities are, so that two terms are at most sqrt 2 apart; no clip is needed. That of
`costed_gradient` is the gradient's: its term is clipped after the costs were added. A group that the query
does not know is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedsim.problems.exact import total
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, probabilities, scores_of_records
from fedsim.protocol.groups import Cells
from silos.vault.sums import Block, Clip

Points = Sequence[Tensor]
Gradients = Callable[[Problem, Block, Points, Clip], Tensor]


def costed_sum(
    gradients: Gradients, options: Sequence[float], problem: Problem, block: Block, points: Points, clip: Clip
) -> Tensor:
    """Sum of the clipped gradients at points[0] of the loss with the costs points[1], (cells,) or
    (members, cells); arguments and result as `silos.vault.terms.summed`.
    """
    cells, (w, table) = Cells.of(options), points
    if table.dim() == 2 and not isinstance(problem, GeneralisedLinear):
        found = []
        for i, member in enumerate(block.members):
            own = block.mapped([member], lambda each, i=i: each[i : i + 1])  # type: ignore[misc]
            at = [point if point.dim() == 1 else point[i] for point in points]
            bound = clip[i : i + 1] if isinstance(clip, Tensor) and clip.dim() == 2 else clip
            found.append(costed_sum(gradients, options, problem, own, at, bound))
        return torch.cat(found)
    from fedsim.problems.costed import costed  # loaded where one is asked for

    target = block.target + cells.classes * (_known(block, cells) + 1)
    return gradients(costed(problem, cells.rows(table)), replace(block, target=target), [w], clip)


def joint(options: Sequence[float], problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    """Sum of F(w, x) in the cell of the record's group, and label if asked for; (members, cells)."""
    cells, threshold = Cells.of(options), options[3]
    share = _shares(problem, block, points[0], cells.classes)
    if threshold:
        chosen = share[..., 1] > threshold if cells.classes == 2 else share.argmax(-1)
        share = one_hot(chosen.long(), cells.classes) * (share > 0).any(-1, keepdim=True)
    groups, labels, classes = cells.shape
    group, silos = _known(block, cells), len(block.target)
    row = group * labels + (block.target.long().clamp(0, labels - 1) if cells.by_label else 0)
    row = torch.where(group < 0, groups * labels, row)  # a last one, which nobody sees
    row += (groups * labels + 1) * torch.arange(silos)[:, None]
    row, rows, part = row.flatten(), silos * (groups * labels + 1), block.part
    sums = [torch.bincount(row, (share[..., j] * part).flatten(), rows) for j in range(classes)]
    return torch.stack(sums, -1).view(silos, -1, classes)[:, :-1].flatten(1)


def _known(block: Block, cells: Cells) -> Tensor:
    """Each record's group, -1 for one that the query does not know."""
    assert block.group is not None  # see `silos.vault.gate.Gate`
    return torch.where(block.group < cells.groups, block.group, -1)


def _shares(problem: Problem, block: Block, point: Tensor, classes: int) -> Tensor:
    """F(w, x) of every row, (silos, rows, classes), float64: of at least 0, sum at most 1; zeros for NaN."""
    if isinstance(problem, GeneralisedLinear):
        scores = block.scores(problem, point, keep=True)
    else:
        scores = scores_of_records(problem, block.features, point)
    known = probabilities(problem, scores.flatten(0, 1))
    assert known is not None  # see `fedsim.problems.answerable`
    share = known.double().clamp(0.0, 1.0)
    if classes == 2:  # which add up to 1, without a division
        share = torch.stack([1 - share[..., 1], share[..., 1]], -1)
    else:
        share = share[..., :classes] / total(share).unsqueeze(-1).clamp_min_(1.0)
    return share.nan_to_num_(0.0).view(*block.target.shape, -1)
