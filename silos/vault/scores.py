"""What one record says of a model, bounded so that a silo can release its sum over records.

A term is made of its record and the public model alone. A record whose score is no number, or whose label is
none, has the worst term there is and counts like any other, so that it decides nothing but its own term.
Replacing a record moves the sum of `mistakes`, `bounded_log_loss` and `squared_distance` by at most 1, and a
histogram of `score_bins` by at most 1 in each of at most two cells, so by at most sqrt(2) in the 2-norm
(Dwork and Roth 2014, section 3.3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fedsim.problems.exact import log, total
from fedsim.problems.kinds import Problem, probabilities, scores_of_records

if TYPE_CHECKING:
    from torch import Tensor


def mistakes(scores: Tensor, target: Tensor) -> Tensor:
    """Which records are misclassified, (records,) of truth values; scores that are no numbers are a mistake.

    Scores are (records,), predicting class 1 where positive and else 0, or (records, classes); classes in
    `target` are (records,).
    """
    predicted = (scores > 0).long() if scores.dim() == 1 else scores.argmax(-1)
    unknown = scores.isnan() if scores.dim() == 1 else scores.isnan().any(-1)
    return (predicted != target) | unknown


def score_bins(problem: Problem, features: Tensor, target: Tensor, w: Tensor, bins: int) -> Tensor:
    """Each record's cell of the histogram of scores, (records,) in 0..2B-1: B class + bin.

    Bin k holds predicted probabilities of class 1 in (k / B, (k + 1) / B], the first one 0 too: with B even,
    records of the upper half are predicted to be class 1. Certainty of the other class is the worst bin.

    The problem has two classes, with probabilities; every other label than 1 counts as class 0. Features are
    (records, features), target is (records,), the model w (d,), bins is B >= 1.
    """
    known = _probabilities(problem, features, w)
    if known.shape[-1] != 2:
        raise ValueError(f"a histogram of scores is of two classes, not {known.shape[-1]}")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    found = torch.bucketize(known[:, 1].contiguous(), edges)
    one = target == 1
    found = torch.where(known.isnan().any(-1), torch.where(one, 0, bins - 1), found)
    return found + bins * one


def bounded_log_loss(problem: Problem, features: Tensor, target: Tensor, w: Tensor, bound: float) -> Tensor:
    """Each record's log loss as a share, (records,) in [0, 1]: see `log_loss_range`.

    The probability of the record's class is held to [b, 1 - b], b in (0, 1/2). The problem has two classes or
    more, with probabilities. Features are (records, features), target's classes (records,), the model w (d,).
    """
    known = _probabilities(problem, features, w)
    own = known.gather(-1, _labels(known, target)[0].unsqueeze(-1)).squeeze(-1)
    least, most = log_loss_range(bound)
    share = (-log(own.clamp(bound, 1 - bound)) - least) / (most - least)
    return _or_worst(share.clamp(0, 1), known, target)


def log_loss_range(bound: float) -> tuple[float, float]:
    """The log loss that is share 0 of `bounded_log_loss`, and share 1: those of 1 - b and b."""
    return -math.log1p(-bound), -math.log(bound)


def squared_distance(problem: Problem, features: Tensor, target: Tensor, w: Tensor) -> Tensor:
    """Each record's Brier score as a share, (records,) in [0, 1]: half the squared distance between predicted
    probabilities and the class, which is (p - y)^2 where there are two. Arguments as `bounded_log_loss`.
    """
    known = _probabilities(problem, features, w)
    exact = torch.nn.functional.one_hot(_labels(known, target)[0], known.shape[-1])
    return _or_worst((total((known - exact).square()) / 2).clamp(0, 1), known, target)


def _probabilities(problem: Problem, features: Tensor, w: Tensor) -> Tensor:
    """(records, classes), float64."""
    known = probabilities(problem, scores_of_records(problem, features, w))
    if known is None:
        raise ValueError(f"{type(problem).__name__} gives no probabilities")
    return known.double()


def _labels(known: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The records' classes, 0 where a label is none, and whether it is one."""
    right = (target >= 0) & (target < known.shape[-1]) & (target == target.floor())
    return torch.where(right, target, 0).long(), right


def _or_worst(share: Tensor, known: Tensor, target: Tensor) -> Tensor:
    return torch.where(_labels(known, target)[1] & ~known.isnan().any(-1), share, 1.0)
