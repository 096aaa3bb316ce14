"""Groups: a dominating pair of a release on a sampled batch where k of a silo's n records are replaced.

j of the k records are in the batch with probability p_j, j = 0, ..., k, and move its sum by up to j mu: by
coupling batches that hold none of them, and the first 1, 2, ... in an order, the release is a mixture of
N(a_j, I) on one data set and of N(b_j, I) on the other, a_0 = b_0, over couplings.

**Lemma.** Of sum_i pi_i N(a_i, I) against c N(b, I) no hockey-stick is larger than where all a_i are on one
ray from b, as far away as they may be. (With g_i = <a_i - b, z> it is E F(sum_i pi_i e^(g_i - E g_i^2 / 2)),
F(x) = (x - c)_+ convex: Kahane's inequality, covariances grow entry by entry.) Hockey-sticks of sums are at
most the sums of theirs. So sum_i p_i N(a_i) - y sum_l p_l N(b_l) is divided into pieces, one for each l,
so that all have their threshold at one t; then the sum of pieces is that of the mixtures on a line.

* *Poisson*, where |a_i - b_l| <= (i + l) mu / 2: always possible. The pair is sum_j p_j N(j mu / 2) against
  sum_j p_j N(-j mu / 2), p binomial.
* *Fixed size*, |a_i - b_l| <= max(i, l) mu: possible where every i meets l <= i only, and parts of N(b_l)
  may be left out. A part of p_i may count as farther away; so let q be p, hypergeometric, or in part the law
  of the larger of two such i, l. With L_j(t) the likelihood ratio of N(j mu) and N(0) at t, it is possible
  (Hall's condition for nested sets) for every y >= 1 with

      y >= sum over j <= s of q_j L_j(t) / sum over j <= s of p_j for all s >= 1, where q_0 = p_0,

  and then sum_j q_j h(ln L_j(t); j mu) bounds the hockey-stick at y, h of `fedsim.privacy.gaussian`. With
  q = p and s = k this is sum_j p_j N(j mu) against N(0), which some data sets attain.
* *With replacement*: a draw is of the group with probability k / n (`pairs.WithReplacementPair`).

The bounds are made at points t. They hold in either order, hence for y < 1 too (`pairs`), and a hockey-stick
is convex in y: it is at most their lower convex hull.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.privacy import gaussian, loss
from fedsim.privacy.cost import Composition
from fedsim.privacy.pair import Pair
from fedsim.privacy.pairs import GaussianPair, PoissonPair, ReleasePair, SubsampledPair, WithReplacementPair

Array = npt.NDArray[np.float64]

_RAREST = 1e-250  # chance of a number of records in the batch that is counted as infinite loss
_REST = 1e-240  # more than all of those together
_FAR, _APART = 38.0, 0.02  # how far t goes beyond the last mean, and its step
_PARTS = (0.0, 0.2, 0.5, 1.0)  # of p that counts as farther away
_HALVINGS = 60
_LARGEST, _MOST = 60.0, 1000  # k mu of one release, and k, up to which anything is claimed


@dataclass(frozen=True, slots=True)
class GroupPair(Pair):
    """The bounds of the module docstring for Poisson batches, or of fixed size; alike in either order."""

    mu: float  # of one record, > 0
    chance: tuple[float, ...]  # p_j for j = 0, 1, ..., at least two
    poisson: bool

    def profile(self, epsilon: Array) -> Array:
        """An upper bound of the hockey-stick divergence at eps >= 0, shape as epsilon."""
        at, found = _table(self)
        cell = np.clip(np.searchsorted(at, epsilon, side="right") - 1, 0, len(at) - 2)
        share = _share(np.minimum(epsilon, at[cell + 1]), at[cell], at[cell + 1])
        return np.asarray(found[cell] + share * (found[cell + 1] - found[cell]))

    def reach(self, tail: float) -> float:
        """A loss beyond which the profile is at most `tail`, or all that it falls to."""
        at, found = _table(self)
        return float(at[max(1, int(np.argmax(found <= max(tail, found[-1]))))])


@lru_cache(maxsize=256)
def _table(pair: GroupPair) -> tuple[Array, Array]:
    """Losses, ascending from 0, and the bound at each."""
    chance = np.array(pair.chance)
    means = np.arange(len(chance), dtype=np.float64) * (pair.mu / 2 if pair.poisson else pair.mu)
    t = np.arange(0.0, means[-1] + _FAR, _APART)[:, None]
    if pair.poisson:
        sides = [special.logsumexp(-((t - sign * means) ** 2) / 2, b=chance, axis=1) for sign in (1, -1)]
        at = sides[0] - sides[1]
        below = special.logsumexp(special.log_ndtr(-means - t), b=chance, axis=1)
        found = np.exp(special.log_ndtr(means - t)) @ chance - np.exp(at + below)
        return _hull(at, np.maximum(found, 0.0) + _REST)
    larger = chance * (2 * np.cumsum(chance) - chance - chance[0])  # of i >= 1 and any l
    bounds = []
    for part in _PARTS:
        q = np.append(chance[0], ((1 - part) * chance + part * larger)[1:])
        low, high = 0.0, means[-1] + _FAR  # the first is where y = 1
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = _fixed(np.full((1, 1), middle), means, chance, q)[0][0] > 0
            low, high = (low, middle) if above else (middle, high)
        bounds.append(_fixed(low + t, means, chance, q))
    at, found = np.concatenate(bounds, axis=1)
    return _hull(np.maximum(at, 0.0), found + _REST)


def _fixed(t: Array, means: Array, chance: Array, q: Array) -> tuple[Array, Array]:
    """ln of the least y, and the bound, of the module docstring for a fixed size; t is (points, 1)."""
    losses = means * t - means**2 / 2
    shift = losses.max(axis=1, keepdims=True)
    least = np.cumsum(q * np.exp(losses - shift), axis=1)[:, 1:] / np.maximum(np.cumsum(chance)[1:], _RAREST)
    return np.log(least.max(axis=1)) + shift[:, 0], gaussian.profile(losses[:, 1:], means[1:]) @ q[1:]


def _share(at: Array, left: Array | float, right: Array | float) -> Array:
    """Where e^at is between e^left and e^right, from 0 to 1."""
    return np.asarray(np.exp(at - right) * np.expm1(left - at) / np.expm1(left - right))


def _hull(at: Array, found: Array) -> tuple[Array, Array]:
    """The points from 0 on of the lower convex hull in e^at of a profile that is alike in either order."""
    at, found = np.append(-at, at), np.append(-np.expm1(-at) + np.exp(-at) * found, found)
    kept: list[tuple[float, float]] = []
    for place in np.lexsort((found, at)).tolist():
        x, y = float(at[place]), float(found[place])
        if kept and (x == kept[-1][0] or y >= kept[-1][1]):
            continue
        while len(kept) > 1:
            (a, first), (b, middle) = kept[-2:]
            if middle < first + math.exp(b - x) * math.expm1(a - b) / math.expm1(a - x) * (y - first):
                break
            kept.pop()
        kept.append((x, y))
    loss, bound = np.array(kept).T
    right = int(np.searchsorted(loss, 0.0, side="right"))
    share = _share(np.zeros(1), loss[right - 1], loss[right])
    zero = bound[right - 1] + share * (bound[right] - bound[right - 1])
    return np.append(0.0, loss[right:]), np.append(zero, bound[right:])


def _chances(ratios: list[float]) -> tuple[float, ...]:
    """p_0, p_1, ... that have these ratios of neighbours; 0 below `_RAREST`."""
    logs = np.append(0.0, np.cumsum(np.log(ratios)))
    chance = np.exp(logs - special.logsumexp(logs))
    return tuple(np.trim_zeros(np.where(chance < _RAREST, 0.0, chance), "b").tolist())


def grouped(pair: ReleasePair, n: int, k: int) -> Pair | None:
    """The pair of a release for k of n records, given that for one; None where none is known."""
    match pair:
        case GaussianPair():
            return GaussianPair(k * pair.mu)
        case PoissonPair(mu, q):
            odds = [(k - j) / (j + 1) * q / (1 - q) for j in range(k)]
            return GroupPair(mu, _chances(odds), poisson=True)
        case WithReplacementPair(_, _, draws) if k < n and draws * math.log1p(-k / n) > -600:
            return replace(pair, n=n / k)
        case SubsampledPair(mu, q) if type(pair) is SubsampledPair:
            size = round(q * n)
            if k > n - size:  # no batch is without all of them
                return GaussianPair(min(k, size) * mu)
            odds = [(k - j) * (size - j) / ((j + 1) * (n - k - size + j + 1)) for j in range(min(k, size))]
            return GroupPair(mu, _chances(odds), poisson=False)
    return None


def epsilon(plan: Composition, n: int, k: int, delta: float) -> float:
    """Return eps of a composition at noise multiplier 1 under replacing k of n records; infinity for none.

    **Guarantee.** Answers are (eps, delta)-DP with respect to any k of the silo's records: the pairs above
    compose adaptively, and with k mu for what is not sampled (`convert.group_gaussian`).
    """
    if plan.silent:
        return 0.0
    if k > _MOST:
        return math.inf
    pairs = [(pair, count) for one, count in plan.pairs(1.0) if (pair := grouped(one, n, k)) is not None]
    if len(pairs) < len(plan.pairs(1.0)) or k * max(pair.mu for pair, _ in plan.pairs(1.0)) > _LARGEST:
        return math.inf
    return loss.epsilon(pairs, delta)
