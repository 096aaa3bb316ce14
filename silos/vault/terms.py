"""Sums over records of the statistics that are no plain gradients, and of transformed records.

Guarantee, for each statistic of `fedsim.protocol.statistics`: a record's term is made of that record, the
points and the options alone, has norm <= clip, and two terms are at most spread x clip apart. Sums are in
float64, or in whole numbers. Padding adds nothing (`Block.real`); a record that counts as the zero vector
(`silos.vault.records`) is a record all the same, so that every record is in one cell of a histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np
import torch
from torch import Tensor

from fedsim.privacy.exponential import rank_scores
from fedsim.problems.exact import scores, sums, total
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, coefficient, head, scores_of_records
from fedsim.protocol.moments import svec
from fedsim.protocol.plan import QueryShape
from fedsim.protocol.statistics import TARGET, histogram_edges
from silos.vault.group_terms import costed_sum, joint
from silos.vault.layout import sanitised
from silos.vault.selections import PER_ONE
from silos.vault.sums import Block, Clip

Points = Sequence[Tensor]
Options = Sequence[float]
ClippedSum = Callable[[Problem, Block, Points, Clip], Tensor]


def summed(
    gradients: ClippedSum, shape: QueryShape, problem: Problem, block: Block, points: Points, clip: Clip
) -> Tensor:
    """Sum over a block's records of their terms, (silos, size).

    Args:
        gradients: sums clipped gradients (`silos.vault.records.clipped_sum`), of records or units.
        shape: statistic and options.
        problem: with the features that the block has.
        points: (d,) or (silos, d).
        clip: of a term, a number or (silos, 1); None does not clip (mechanism `none`).
    """
    if (copies := len(block.members) // len(block.target)) > 1:  # of runs that share records
        block = block.mapped(block.members, lambda each: torch.cat([each] * copies))
    if (own := _OF_GRADIENTS.get(shape.statistic)) is not None:
        return own(gradients, shape.options, problem, block, points, clip)
    return _SUMS[shape.statistic](shape.options, problem, block, points, clip)


class Transformed:
    """Blocks of a run's records under a transform; those of the last one are kept."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[Block], Tensor, list[Block]] = [], torch.empty(0), []

    def blocks(self, problem: Problem, blocks: Sequence[Block], transform: Tensor) -> list[Block]:
        """Every record x as `transform` x; one that is not finite then counts as the zero vector."""
        before, by, found = self._last
        same = len(before) == len(blocks) and all(a is b for a, b in zip(before, blocks, strict=True))
        if not same or not torch.equal(by, transform):
            columns, k = transform.T.flatten(), len(transform)
            features = (scores(own.features, columns, k).view(*own.target.shape, k) for own in blocks)
            made = [replace(own, features=x) for own, x in zip(blocks, features, strict=True)]
            found = [sanitised(block, problem) for block in made]
            self._last = list(blocks), transform, found
        return found


def narrowed(problem: Problem, features: int) -> Problem:
    """The problem of a linear model on so many features."""
    assert isinstance(problem, GeneralisedLinear)  # see `fedsim.problems.answerable`
    return replace(problem, num_features=features)


def _units(block: Block) -> Tensor:
    """How many units a silo's records are of, (silos, 1), float64."""
    if block.owner is None:
        return block.records.sum(1, keepdim=True)
    return block.owner.amax(1, keepdim=True).double() + 1


def _column(block: Block, column: float) -> Tensor:
    values = block.target if column == TARGET else block.features[..., int(column)]
    return values.double()


def _second_moment(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    v = block.features.double()
    if options[0]:
        v = torch.cat([v, block.target.double().unsqueeze(-1)], -1)
    square = sums(v, v)
    weight = block.records if block.share is None else block.records * block.share.double()
    if clip is not None:
        weight = weight * (clip / square).nan_to_num(nan=1.0, posinf=1.0).clamp_max(1.0)
    return svec((v * weight.unsqueeze(-1)).transpose(1, 2) @ v)


def _sum(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    column, low, high = options
    shares = ((_column(block, column) - low) / (high - low)).clamp(0.0, 1.0)
    return (shares * block.part).sum(1, keepdim=True)


def _capped_sum(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    column, low, high, cap = options
    return _held(block, _column(block, column).clamp(low, high), cap)


def _presence(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    column, low, high = options
    values = _column(block, column)
    return _held(block, ((values >= low) & (values <= high)).double(), 1.0)


def _held(block: Block, values: Tensor, cap: float) -> Tensor:
    """Sum over units of min(1, the sum of a unit's values over the cap), (silos, 1); values are 0 or more."""
    own = values * block.records
    if block.owner is not None:
        units = torch.zeros(len(own), int(block.owner.max()) + 1, dtype=torch.float64)
        own = units.scatter_add_(1, block.owner, own)
    return (own / cap).clamp_max(1.0).sum(1, keepdim=True)


def _histogram(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    columns, edges = options[1 : 1 + int(options[0])], histogram_edges(tuple(options))
    value = torch.zeros_like(block.target, dtype=torch.float64)
    for place, column in enumerate(columns, 1):
        value += place * _column(block, column)
    inner = torch.tensor(edges[1:-1], dtype=torch.float64)
    return _counted(torch.bucketize(value, inner, right=True), block.part, len(edges) - 1)


def _contributions(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    counts, inner = block.counts, torch.tensor(options[:-1], dtype=torch.float64)
    return _counted(torch.bucketize(counts, inner), block.part, len(options))


def _counted(cells: Tensor, part: Tensor, size: int) -> Tensor:
    """How many units are in each cell; cells (silos, rows) to (silos, size)."""
    found = torch.zeros(len(cells), size, dtype=torch.float64)
    return found.scatter_add_(1, cells, part)


def _quantile(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    column, q, *edges = options
    values, real = _column(block, column).numpy(), block.records.numpy() > 0
    found = [
        rank_scores(own[kept], edges, q, None if block.owner is None else block.owner[i].numpy()[kept])
        for i, (own, kept) in enumerate(zip(values, real, strict=True))
    ]
    return torch.from_numpy(np.stack([own.parts * (PER_ONE // own.per_one) for own in found]))


def _by_silo(block: Block) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
    """(place, features, targets, parts of units or None) of each silo's records."""
    real = block.records > 0
    part = None if block.owner is None else block.part
    for i in range(len(block.members)):
        own = None if part is None else part[i][real[i]]
        yield i, block.features[i][real[i]], block.target[i][real[i]], own


def _own(point: Tensor, place: int) -> Tensor:
    return point if point.dim() == 1 else point[place]


def _scored(
    name: str, options: Options, problem: Problem, block: Block, points: Points, clip: Clip
) -> Tensor:
    """Sums of the numbers in [0, 1] that records say of a model (`silos.vault.scores`)."""
    from silos.vault import scores

    found = []
    for i, x, y, part in _by_silo(block):
        w = _own(points[0], i)
        if name == "mistakes":
            own = scores.mistakes(scores_of_records(problem, x, w), y)
        elif name == "log_loss":
            own = scores.bounded_log_loss(problem, x, y, w, options[0])
        else:
            own = scores.squared_distance(problem, x, y, w)
        found.append((own.double() if part is None else own.double() * part).sum())
    return torch.stack(found).unsqueeze(-1)


def _score_histogram(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    from silos.vault.scores import score_bins

    bins = int(options[0])
    cells = [(score_bins(problem, x, y, _own(points[0], i), bins), part) for i, x, y, part in _by_silo(block)]
    return torch.stack([torch.bincount(own, part, minlength=2 * bins) for own, part in cells]).double()


def _choice(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    """-sum over records of the loss over its clip, in whole parts; (silos, models)."""
    by_model = []
    for point in points:
        sums = []
        for i, x, y, part in _by_silo(block):
            own = clip[i] if isinstance(clip, Tensor) and clip.dim() == 2 else 1e6 if clip is None else clip
            scores = scores_of_records(problem, x, _own(point, i))
            losses = head(problem).losses(scores, y).double()
            share = (losses / own).nan_to_num(nan=1.0, posinf=1.0)
            share = share.clamp(0.0, 1.0) * PER_ONE
            sums.append(-(share if part is None else share * part).long().sum())
        by_model.append(torch.stack(sums))
    return torch.stack(by_model, dim=1)


def _label_projection(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    """Sum of n c_j y_j, c_j the columns of (X^T X)^-1 X^T shortened to clip / n: (silos, d).

    X has the rows that count: which ones no label decides. Where no column is too long, the mean is their
    least-squares solution (Epasto et al. 2020, Algorithm 3). n is the number of units; what a record
    weighs in its unit is made up for.
    """
    found, n = [], _units(block)
    for i, x, y, _ in _by_silo(block):
        share = torch.ones(len(x)) if block.share is None else block.share[i][block.records[i] > 0].double()
        x, y, share = x[share > 0], y[share > 0], share[share > 0]
        columns = n[i] * torch.linalg.pinv(x.double()).nan_to_num(0.0) / share
        if clip is not None:
            most = clip[i] if isinstance(clip, Tensor) and clip.dim() == 2 else clip
            columns = columns * (most / columns.norm(dim=0)).nan_to_num(1.0, 1.0).clamp_max(1.0)
        found.append((columns * share) @ y.double().clamp(-1.0, 1.0))
    return torch.stack(found)


def _longer(options: Options, problem: Problem, block: Block, points: Points, clip: Clip) -> Tensor:
    """How many records' gradients at points[0] are longer than points[1], a unit's as their mean.

    Not longer is a gradient that is no finite number, and one that adds nothing to a sum of gradients. Scores
    are kept for the gradients that are asked for beside it.
    """
    w, most = points
    if isinstance(problem, GeneralisedLinear):
        scores = block.scores(problem, w, keep=True)
        slope = coefficient(problem, scores, block.target, block.inverse_norm)
        length = slope.abs() if slope.dim() == 2 else total(slope.square()).sqrt()
        long = (length > most * block.inverse_norm) & (length < inf) & (block.inverse_norm > 0)
        long = long if block.mask is None else long & (block.mask > 0)
    else:
        from silos.vault.network import lengths

        length = lengths(problem, block, w)
        long = (length > most) & (length < inf)
    if block.owner is None:
        return torch.count_nonzero(long, 1).double().unsqueeze(1)
    return (long * block.part).sum(1, keepdim=True)


def _minimiser(
    gradients: ClippedSum, options: Options, problem: Problem, block: Block, points: Points, clip: Clip
) -> Tensor:
    """n times the model after T steps from 0 of w - eta (mean clipped gradient + lambda w).

    Records are shortened to `radius`, so that the clipped loss is convex and h radius^2-smooth: with eta =
    1 / (h radius^2 + lambda) a step on the same records moves two models together by 1 - eta lambda, and one
    other record moves them apart by at most eta 2 clip / n. So the results are at most 2 clip / (lambda n)
    apart, whatever T is (Hardt, Recht and Singer 2016, Theorem 3.9, for full batches).
    """
    regularisation, steps, radius = options
    assert isinstance(problem, GeneralisedLinear) and problem.curvature is not None  # noqa: PT018  see `check`
    features = block.features.double()
    norm = sums(features, features).sqrt_().unsqueeze(-1)
    features = features * (radius / norm).nan_to_num(1.0, 1.0).clamp_max(1.0)
    mask, real = (None if each is None else each.double() for each in (block.mask, block.real))
    target = block.target.double()
    held = sanitised(replace(block, features=features, target=target, mask=mask, real=real), problem)
    n = _units(block)
    step = 1 / (problem.curvature * radius**2 + regularisation)
    w = torch.zeros(len(block.members), problem.dimension, dtype=torch.float64)
    for _ in range(int(steps)):
        w = w - step * (gradients(problem, held, [w], clip) / n + regularisation * w)
    return w * n


_Sum = Callable[[Options, Problem, Block, Points, Clip], Tensor]

_OF_GRADIENTS = {"costed_gradient": costed_sum, "minimiser": _minimiser}  # made of clipped sums of gradients
_SUMS: dict[str, _Sum] = {
    "joint": joint,
    "longer": _longer,
    "second_moment": _second_moment,
    "sum": _sum,
    "capped_sum": _capped_sum,
    "presence": _presence,
    "histogram": _histogram,
    "contributions": _contributions,
    "mistakes": partial(_scored, "mistakes"),
    "log_loss": partial(_scored, "log_loss"),
    "brier": partial(_scored, "brier"),
    "score_histogram": _score_histogram,
    "quantile": _quantile,
    "choice": _choice,
    "label_projection": _label_projection,
}
