"""The exponential mechanism: one of k public candidates, P[i] proportional to exp(epsilon score_i / 2).

Guarantee: where replacing one unit moves no score by more than 1, the choice is mu-GDP with

    mu = 2 Phi^-1(1 / (1 + e^(-epsilon / 2))),

and with no smaller mu: it composes as a Gaussian release of that mu (`fedsim.privacy.gaussian`).

Why: ln P[i] / Q[i] of two neighbours is between t - epsilon and t for one t, the bounded range of Dong,
Durfee and Rogers 2020 (arXiv 1909.13830). So a test of level a and power p has p / a <= e^t and
(1 - p) / (1 - a) >= e^(t - epsilon), hence logit(p) <= logit(a) + epsilon. mu-GDP asks for
Phi^-1(p) <= Phi^-1(a) + mu (Dong, Roth and Su 2022). The slope of Phi^-1(1 / (1 + e^-x)) is even in x and
falls with |x|: it rises most from x = -epsilon / 2 to epsilon / 2. Scores (1, 0) and (0, 1) attain it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.common.errors import InputError
from fedsim.privacy.discrete_noise import Integers
from fedsim.protocol.statistics import is_level

Array = npt.NDArray[np.float64]

_MARGIN = 2.0**-44  # relative: far more than the functions of scipy are wrong by
_SMALL = 2.0  # below it, 1 / (1 + e^-x) - 1/2 keeps its digits; above it, logarithms keep those of the tail
_SHARE = 1 << 16


def mu_of(epsilon: npt.ArrayLike) -> Array:
    """The price of a choice at `epsilon` >= 0, of any shape, rounded up; infinity costs infinity.

    >>> mu_of([0.5, 1.0, 2.0]).round(4).tolist()
    [0.313, 0.6239, 1.232]
    """
    eps = np.asarray(epsilon, float)
    small = math.sqrt(8) * special.erfinv(np.tanh(np.minimum(eps, _SMALL) / 4))
    large = -2 * special.ndtri_exp(special.log_expit(-np.maximum(eps, _SMALL) / 2))
    price: Array = np.where(eps < _SMALL, small, large) * (1 + _MARGIN)
    return price


def epsilon_of(mu: npt.ArrayLike) -> Array:
    """The epsilon that `mu` >= 0 affords, of any shape, rounded down: mu_of(epsilon_of(mu)) <= mu."""
    half = np.asarray(mu, float) / 2
    small = 4 * np.arctanh(special.erf(np.minimum(half, 1) / math.sqrt(2)))
    large = 2 * (special.log_ndtr(np.maximum(half, 1)) - special.log_ndtr(-np.maximum(half, 1)))
    # epsilon grows at most as mu^2: two margins for that of `mu_of`, two for these functions
    afforded: Array = np.where(half < 1, small, large) * (1 - 4 * _MARGIN)
    return afforded


class Scores(NamedTuple):
    """The scores of k candidates as integers, so that a choice among them can be exact."""

    parts: Integers  # (k,)
    per_one: int  # parts in 1, the most by which replacing one unit moves a score


def rank_scores(values: Array, edges: Sequence[float], q: float, persons: Integers | None = None) -> Scores:
    """Scores for the cell that has the q-quantile: by how many units it is missed, less than 0 or 0.

    Where b(e) is the sum over units of the share of its values < e, less q, a cell from a to e scores
    -max(0, b(a), -b(e)); the first cell begins below all values, the last ends above them. A share is in
    [0, 1], so that replacing a unit moves every b, and so every score, by at most 1, however many values it
    has. It is rounded down to parts of 2^-16, still in [0, 1]; then sums are exact. NaN is in the last cell.

    Args:
        values: (n,).
        edges: (k + 1,) of public cells, increasing, k >= 2; else InputError.
        q: in (0, 1), the decimal number that is written, of at most six digits; else InputError.
        persons: (n,), whose each value is; None where a record is the unit.

    Source: Epasto et al. 2020, Algorithm 4, a person's s values weighing 1 / s each, without its normaliser,
    and of cells in place of points: many equal values are in one cell, which then has the quantile.
    """
    ends = np.asarray(edges, float)
    if ends.size < 3 or not np.isfinite(ends).all() or not (np.diff(ends) > 0).all():
        raise InputError("edges", edges, "at least three finite numbers, increasing")
    if not is_level(q):
        raise InputError("q", q, "between 0 and 1, of at most six digits after the point")
    level = Fraction(repr(float(q)))
    order = np.argsort(values)  # NaN last
    owners = (np.arange(len(values)) if persons is None else persons)[order]
    _, owner, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    earlier = np.empty(len(values), np.int64)  # how many of its owner's values come before a value
    first = np.repeat(sizes.cumsum() - sizes, sizes)
    earlier[np.argsort(owner, kind="stable")] = np.arange(len(values)) - first
    added = (earlier + 1) * _SHARE // sizes[owner] - earlier * _SHARE // sizes[owner]
    sums = np.append(0, added.cumsum())[np.searchsorted(values[order], ends[1:-1])]
    sums = np.concatenate([[0], sums, [_SHARE * len(sizes)]])
    over = level.denominator * sums - level.numerator * _SHARE * len(sizes)
    return Scores(-np.maximum(0, np.maximum(over[:-1], -over[1:])), level.denominator * _SHARE)


def chosen(scores: Scores, epsilon: float, uniform: float) -> int:
    """The candidate at `uniform` in [0, 1) of the cumulative probabilities: for simulations, which repeat."""
    best = scores.parts.max()
    cumulative = np.exp(epsilon / 2 * ((scores.parts - best) / scores.per_one)).cumsum()
    return int(np.searchsorted(cumulative[:-1], uniform * cumulative[-1], side="right"))


def chosen_exactly(scores: Scores, epsilon: float) -> int:
    """A candidate drawn in integers and fractions alone, from the random bits of `discrete_noise`.

    OpenDP's noisy max under zCDP proposes candidates uniformly until it accepts one, with probability
    exp(-(best - score) / scale): the exponential mechanism of epsilon = 2 per_one / scale. (Under pure DP it
    is permute-and-flip, another mechanism.) The time that it takes depends on the scores, of at least one
    candidate. The scale is rounded up, so that the epsilon drawn with is at most this one, > 0 and finite.
    """
    from opendp.domains import atom_domain, vector_domain  # a library of 275 MB, which few processes need
    from opendp.measurements import make_noisy_max
    from opendp.measures import zero_concentrated_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    exact = 2 * scores.per_one / Fraction(epsilon)
    scale = float(exact) if float(exact) >= exact else math.nextafter(float(exact), math.inf)
    space = vector_domain(atom_domain(T="i64")), linf_distance(T="i64")
    return int(make_noisy_max(*space, zero_concentrated_divergence(), scale)(scores.parts))
