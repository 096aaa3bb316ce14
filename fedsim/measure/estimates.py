"""What an evaluation reports of its noisy counts: metrics of scores, and gaps between groups.

Gaps are made of counts by [group, label, predicted class] (the statistic `joint`), with independent noise of
one known standard deviation s in each cell. A gap is the difference of two groups' rates
(`fedsim.measure.groups`), and a rate p = a / b is the share of k_a cells in k_b. Its standard error is

    s sqrt(k_a (1 - p)^2 + (k_b - k_a) p^2) / b

to first order (delta method), and those of two groups add in squares. What the cells add up to is not known,
since a record without a group is in none. First order is enough where b is at least 5 times its own noise,
s sqrt(k_b): a rate's bias is then about a fifth of its standard error or less. A gap for which a group has
less is unknown, and the reason names the group.

The largest of m gaps (pairs of groups, classes, both rates of odds) is chosen by the noise too. So it has
the largest of their standard errors times z(0.025 / m) / z(0.025), z the upper quantile of a normal number:
an interval of 1.96 of them misses the truth in at most 5 % of cases, whichever gaps are equal (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from torch import Tensor

from fedsim.algorithms.evaluation import Evaluation
from fedsim.data.source import Floats
from fedsim.measure.from_histogram import Estimate, metrics
from fedsim.protocol.plan import Admitted
from fedsim.scenario.evaluation import cell_noise
from fedsim.scenario.resolve import Resolved

_LEAST = 5.0  # b, over its noise
_KINDS = {"parity_gap": ("parity",), "odds_gap": ("hits", "alarms"), "opportunity_gap": ("hits",)}


def estimates(
    evaluation: Resolved, admitted: Sequence[Admitted], shares: Tensor, records: int
) -> dict[str, Estimate]:
    """Metrics by name.

    Args:
        evaluation: as `evaluation_of` makes it.
        admitted: the silos that answered.
        shares: the answer, as shares of their `records`.
    """
    asked, noise = evaluation.algorithm, cell_noise(evaluation, admitted)
    assert isinstance(asked, Evaluation)
    counts, found = (shares.double() * records).numpy(), {}
    if split := 2 * asked.bins:
        found = metrics(counts[:split], noise, records)
        del found["log_loss"]  # probabilities that are cut are no model's
    return found | (gaps(counts[split:], noise, evaluation.outline.groups) if asked.groups else {})


def gaps(counts: ArrayLike, noise: float, names: Sequence[str]) -> dict[str, Estimate]:
    """The parity, odds and opportunity gaps.

    Args:
        counts: of the cells, flat; of one silo or a sum.
        noise: s of a cell, >= 0.
        names: of the groups.
    """
    cells = np.asarray(counts, float)
    classes = math.isqrt(cells.size // len(names))
    table = cells.reshape(len(names), classes, classes)
    hits, label, predicted = np.diagonal(table, axis1=1, axis2=2), table.sum(axis=2), table.sum(axis=1)
    total = np.broadcast_to(label.sum(axis=1, keepdims=True), label.shape)
    largest = {
        "parity": _largest(predicted, total, classes, classes**2, noise),
        "hits": _largest(hits, label, 1, classes, noise),
        "alarms": _largest(predicted - hits, total - label, classes - 1, classes * (classes - 1), noise),
    }
    found = {}
    for name, kinds in _KINDS.items():
        few, values, errors = zip(*(largest[kind] for kind in kinds), strict=True)
        unknown = ", ".join(np.array(names)[np.any(few, axis=0)])
        reason = f"too few of {unknown} for the noise" if unknown else None
        m = math.comb(len(names), 2) * (1 if classes == 2 else classes) * len(kinds)
        error = max(errors) * float(special.ndtri(0.025 / m) / special.ndtri(0.025))
        found[name] = Estimate(math.nan if unknown else max(values), error, reason)
    return found


def _largest(a: Floats, b: Floats, k_a: int, k_b: int, noise: float) -> tuple[Sequence[bool], float, float]:
    """Whether a group has too few records, (groups,); the largest gap of a / b, and the standard error.

    `a` and `b`: (groups, classes), sums of k_a and k_b cells; class 1 of two counts.
    """
    if b.shape[1] == 2:
        a, b = a[:, 1:], b[:, 1:]
    few = np.any(b <= _LEAST * noise * math.sqrt(k_b), axis=1).tolist()
    if any(few):
        return few, math.nan, math.inf
    p = a / b
    squares = (k_a * (1 - p) ** 2 + (k_b - k_a) * p**2) / b**2
    error = noise * math.sqrt(np.sort(squares, axis=0)[-2:].sum(axis=0).max())
    return few, float(np.ptp(p, axis=0).max()), error
