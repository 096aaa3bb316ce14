"""The exponential mechanism: one of k public candidates, P[i] proportional to exp(epsilon score_i / 2).

Guarantee: where replacing one unit moves no score by more than 1, the choice is mu-GDP with

    mu = 2 Phi^-1(1 / (1 + e^(-epsilon / 2))),

and with no smaller mu: it composes as a Gaussian release of that mu (`fedsim.privacy.gaussian`).

Why: ln P[i] / Q[i] of two neighbours is between t - epsilon and t for one t, the bounded range of Dong,
Durfee and Rogers 2020 (arXiv 1909.13830). So a test of level a and power p has p / a <= e^t and
(1 - p) / (1 - a) >= e^(t - epsilon), hence logit(p) <= logit(a) + epsilon. mu-GDP asks for
Phi^-1(p) <= Phi^-1(a) + mu (Dong, Roth and Su 2022). The slope of Phi^-1(1 / (1 + e^-x)) is even in x and
falls with |x|: it rises most from x = -epsilon / 2 to epsilon / 2. Scores (1, 0) and (0, 1) attain it.

By its own profile a choice costs less (`ChoicePair`). For given t the worst is two outcomes of loss t and
t - epsilon, the first with P[1] = (1 - e^(t - epsilon)) / (1 - e^-epsilon). With y = e^eps, a profile H of
what follows, and H_0(y) = max(0, 1 - y), one choice before it makes

    (T H)(y) = max over t in [0, epsilon] of P[1] H(y e^-t) + (1 - P[1]) H(y e^(epsilon - t)),

t being free to depend on all that came before. So T^k H_0 is that of k choices, by whatever rule each
is made from those before it, and T H_0(e^eps) = (1 - e^((eps - epsilon) / 2))^2 / (1 - e^-epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.common.errors import InputError
from fedsim.privacy.discrete_noise import Integers
from fedsim.privacy.pair import Pair
from fedsim.protocol.statistics import is_level

Array = npt.NDArray[np.float64]

_MARGIN = 2.0**-44  # relative: far more than the functions of scipy are wrong by
_SMALL = 2.0  # below it, 1 / (1 + e^-x) - 1/2 keeps its digits; above it, logarithms keep those of the tail
_SHARE = 1 << 16
_BLOCK = 32  # choices that are composed at once
_CELLS = 200  # of the grid of losses to the epsilon of one choice; for k choices over sqrt(k)
_LARGEST = 16.0  # epsilon of a choice up to which they are


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


@dataclass(frozen=True, slots=True)
class ChoicePair(Pair):
    """`times` choices in turn, of `mu` each as a Gaussian release: T^times H_0 of the module docstring.

    It is convex in e^eps, hence the profile of a pair, which dominates; alike in either order, since
    neighbours are. Source: the range of Dong, Durfee and Rogers 2020, whose Section 4 has T.
    """

    mu: float  # > 0
    times: int = 1
    q: ClassVar[float] = 1.0  # every unit takes part

    @property
    def epsilon(self) -> float:
        """Of one choice, rounded up."""
        return float(epsilon_of(self.mu)) * (1 + 16 * _MARGIN)

    @property
    def largest(self) -> float:
        """See `Pair`."""
        return self.times * self.epsilon

    def most(self, tail: float) -> tuple[int, float]:
        """(1, 0): a unit counts once."""
        return 1, 0.0

    def blocks(self, count: int) -> list[tuple[ChoicePair, int]]:
        """Pairs with counts of `count` such choices, in turn: a block is as private after any other."""
        if self.epsilon > _LARGEST:
            return [(self, count)]
        whole, rest = divmod(count, _BLOCK)
        each = ((ChoicePair(self.mu, _BLOCK), whole), (ChoicePair(self.mu, rest), min(rest, 1)))
        return [(pair, copies) for pair, copies in each if copies]

    def profile(self, epsilon: Array) -> Array:
        """Return T^times H_0 at losses >= 0, shape as epsilon; above one choice interpolated, upwards."""
        if self.times == 1:
            return _once(epsilon, self.epsilon)
        step, table = _in_turn(self.epsilon, self.times)
        cell = np.minimum(epsilon / step, len(table) - 2).astype(int)
        share = np.minimum(1.0, np.expm1(epsilon - cell * step) / math.expm1(step))
        found: Array = table[cell] + share * (table[cell + 1] - table[cell])
        return found

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`."""
        return self.largest


def _once(at: Array, epsilon: float) -> Array:
    """T H_0 at losses of either sign."""
    inside: Array = np.expm1((np.clip(at, -epsilon, epsilon) - epsilon) / 2) ** 2 / -math.expm1(-epsilon)
    return np.where(at < -epsilon, -np.expm1(np.minimum(at, 0.0)), inside)


@lru_cache(maxsize=256)
def _in_turn(epsilon: float, times: int) -> tuple[float, Array]:
    """A step, and T^times H_0 at the losses 0, step, ..., times epsilon, rounded up."""
    cells = math.ceil(_CELLS / math.sqrt(times))
    step, reach = epsilon / cells, (times + 1) * cells
    profile = _once(step * np.arange(-reach, reach + 1, dtype=np.float64), epsilon)
    for _ in range(times - 1):
        profile[cells:-cells] = _one_more(profile, epsilon, cells)
    return step, profile[reach : reach + times * cells + 1]


def _one_more(profile: Array, epsilon: float, cells: int) -> Array:
    """T of a profile on a grid of `cells` steps to epsilon, linear in y between points; all but the outer.

    For t in one cell it is a constant less A s + B / s with s = e^t, of which the largest is taken exactly.
    """
    step, size = epsilon / cells, len(profile) - 2 * cells
    grow, width, least = math.exp(step), math.expm1(step), math.exp(-epsilon)
    drop = profile[:-1] - profile[1:]
    zero = profile[:-1] + drop / width  # of each piece, continued to y = 0
    best = np.zeros(size)
    for j in range(cells):
        near = slice(cells - j - 1, cells - j - 1 + size)
        far = slice(near.start + cells, near.stop + cells)
        a = least * (zero[near] - zero[far]) * width
        b = (drop[near] - least * drop[far]) * math.exp((1 - j) * step)
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.clip(np.nan_to_num(np.sqrt(np.maximum(b, 0.0) / a), nan=1.0), 1.0, grow)
        share = (grow / s - 1) / width
        second = (s * math.exp(j * step - epsilon) - least) / -math.expm1(-epsilon)
        here = (1 - second) * (profile[:-1][near] - share * drop[near])
        best = np.maximum(best, here + second * (profile[:-1][far] - share * drop[far]))
    return best


class Scores(NamedTuple):
    """The scores of k candidates as integers, so that a choice among them can be exact."""

    parts: Integers  # (k,)
    per_one: int  # parts in 1, the most by which replacing one unit moves a score


def rank_scores(values: Array, edges: Sequence[float], q: float, owners: Integers | None = None) -> Scores:
    """Scores for the cell that has the q-quantile: by how many units it is missed, less than 0 or 0.

    Where b(e) is the sum over units of the share of its values < e, less q, a cell from a to e scores
    -max(0, b(a), -b(e)); the first cell begins below all values, the last ends above them. A share is in
    [0, 1], so that replacing a unit moves every b, and so every score, by at most 1, however many values it
    has. It is rounded down to parts of 2^-16, still in [0, 1]; then sums are exact. NaN is in the last cell.

    Args:
        values: (n,).
        edges: (k + 1,) of public cells, increasing, k >= 2; else InputError.
        q: in (0, 1), the decimal number that is written, of at most six digits; else InputError.
        owners: (n,), whose each value is; None where a record is the unit.

    Source: Epasto et al. 2020, Algorithm 4, a unit's s values weighing 1 / s each, without its normaliser,
    and of cells in place of points: many equal values are in one cell, which then has the quantile.
    """
    ends = np.asarray(edges, float)
    if ends.size < 3 or not np.isfinite(ends).all() or not (np.diff(ends) > 0).all():
        raise InputError("edges", edges, "at least three finite numbers, increasing")
    if not is_level(q):
        raise InputError("q", q, "between 0 and 1, of at most six digits after the point")
    level = Fraction(repr(float(q)))
    order = np.argsort(values)  # NaN last
    whose = (np.arange(len(values)) if owners is None else owners)[order]
    _, owner, sizes = np.unique(whose, return_inverse=True, return_counts=True)
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
