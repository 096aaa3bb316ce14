"""One release of each sampler as a dominating pair, given by its profile.

A pair (P, Q) dominates a mechanism if for every eps the hockey-stick divergence of the pair,
h(eps) = sup_S P(S) - e^eps Q(S), is at least that of the mechanism on any two neighbouring data sets;
then delta <= h(eps), also after composing the pairs of adaptively chosen releases.

A pair's profile below zero is that of the pair in the other order, (Q, P), above it:

    h(eps) = 1 - e^eps + e^eps h'(-eps)    for eps < 0.

Under replace-one every pair here is symmetric: exchanging P and Q leaves the profile as it is, and h' = h. A
Poisson sample of units that are added or removed is not: its pair names its `reverse`. Both orders are
composed then, each of all releases, since a unit is in one of two neighbouring data sets throughout, and the
larger epsilon counts.

That continuation is part of the claim. Continuing the formula for eps >= 0 below zero under-reports,
and leaving the losses below zero out over-reports.

Of K draws with replacement a record is drawn j ~ Binom(K, 1/n) times. Replacing it then moves the clipped sum
by up to 2 C j, so that the release is Gaussian of j mu given j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.privacy import gaussian
from fedsim.privacy.exponential import ChoicePair
from fedsim.privacy.pair import Pair

Array = npt.NDArray[np.float64]

_SMALLEST = 1e-290  # multiplicities rarer than this are lumped together
_ACCURATE = 1e-3  # share of the profile that multiplicities may be left out of, and counted as infinite loss
_HALVINGS = 60
_PIECE = 4096  # losses evaluated at once, times some 20 multiplicities


@dataclass(frozen=True, slots=True)
class GaussianPair(Pair):
    """N(mu, 1) against N(0, 1): one release on every record."""

    mu: float  # sensitivity / noise standard deviation, > 0

    def profile(self, epsilon: Array) -> Array:
        """h(eps; mu) for eps >= 0."""
        return gaussian.profile(epsilon, self.mu)

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`: h(eps) <= Phi(mu/2 - eps/mu)."""
        return max(self.mu * (self.mu / 2 - float(special.ndtri(tail))), self.mu**2)


def amplified(epsilon: float, q: float) -> float:
    """eps' of a release that is eps where the record takes part, which has probability q in (0, 1).

    >>> round(amplified(1.0, q=0.1), 4)
    0.1586
    """
    return float(np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + epsilon))


def unamplified(epsilon: Array, q: float) -> Array:
    """Return the eps with eps' = `epsilon` >= 0: ln(1 + (e^eps' - 1) / q)."""
    # The first form is accurate near 0, the second cannot overflow.
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
    far = epsilon - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(epsilon, 1.0)))
    return np.where(epsilon < 1.0, near, far)


@dataclass(frozen=True, slots=True)
class SubsampledPair(Pair):
    """A Gaussian release on a uniform K-subset of n records drawn without replacement, q = K/n.

    h(eps') = q h(eps; mu) with eps' = ln(1 + q (e^eps - 1)) for eps >= 0.

    References: Zhu, Dong and Wang 2022, Proposition 30; Lebeda et al. 2024 (arXiv 2405.20769).
    """

    mu: float  # sensitivity / noise standard deviation given that the record is in the subset, > 0
    q: float  # K / n, in (0, 1)

    def most(self, tail: float) -> tuple[int, float]:
        """(1, 0): a record is in a batch at most once."""
        return 1, 0.0

    def profile(self, epsilon: Array) -> Array:
        """Return the profile above for eps' = epsilon >= 0, shape as epsilon."""
        return gaussian.profile(unamplified(epsilon, self.q), self.mu) * self.q

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`."""
        return amplified(GaussianPair(self.mu).reach(min(0.5, tail / self.q)), self.q)


@dataclass(frozen=True, slots=True)
class PoissonPair(Pair):
    """A Gaussian release on a Poisson sample: (1-q) N(0) + q N(m) against (1-q) N(0) + q N(-m), m = mu/2.

    The likelihood ratio grows with x, so {ratio > e^eps} is a half line {x > t}; with y = e^(m x),
    c = q e^(-m^2/2) it ends where c y^2 - (1-q)(e^eps - 1) y - c e^eps = 0, that is

        m t = eps/2 + asinh((1-q) sinh(eps/2) / c).

    References: the pair is the one that dp-accounting's PLD accountant uses under REPLACE_ONE.
    """

    # sensitivity / noise standard deviation, > 0; the sensitivity of the sampled sum over its public
    # divisor q n is 2C/(q n), twice the distance of either component from the centre
    mu: float
    q: float  # probability that a record is sampled, in (0, 1)

    def most(self, tail: float) -> tuple[int, float]:
        """(1, 0): a record is in a batch at most once."""
        return 1, 0.0

    def profile(self, epsilon: Array) -> Array:
        """h(eps) = P(x > t) - e^eps Q(x > t) for eps >= 0, shape as epsilon."""
        m, q = self.mu / 2, self.q
        t = (epsilon / 2 + _asinh_exp(self._log_slope(epsilon))) / m
        tail = np.exp(special.log_ndtr(-t))
        # (1-q)(1 - e^eps) Phi(-t): e^eps goes inside the exponential, where it cannot overflow.
        unsampled = (1 - q) * (tail - np.exp(epsilon + special.log_ndtr(-t)))
        sampled = q * (np.exp(special.log_ndtr(m - t)) - np.exp(epsilon + special.log_ndtr(-m - t)))
        return np.asarray(np.maximum(0.0, unsampled + sampled))

    def _log_slope(self, epsilon: Array) -> Array:
        """ln((1-q) sinh(eps/2) / c); minus infinity at eps = 0."""
        with np.errstate(divide="ignore"):
            log_sinh = epsilon / 2 + np.log(-np.expm1(-epsilon)) - math.log(2)
        return np.asarray(math.log1p(-self.q) + log_sinh - (math.log(self.q) - self.mu**2 / 8))

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`."""
        m, q = self.mu / 2, self.q
        x = max(-float(special.ndtri(tail / 2)), m - float(special.ndtri(min(0.5, tail / (2 * q)))))
        upper = np.logaddexp(math.log1p(-q), math.log(q) + m * x - m * m / 2)
        lower = np.logaddexp(math.log1p(-q), math.log(q) - m * x - m * m / 2)
        return float(upper - lower)


@dataclass(frozen=True, slots=True)
class AddRemovePair(SubsampledPair):
    """A Gaussian release on a Poisson sample which the unit may be in: (1-q) N(0) + q N(mu) against N(0).

    That is the unit removed, of `SubsampledPair`'s profile. With `added` it is the other order, which ends at
    -ln(1-q): h(eps') = (1 - (1-q) e^eps') h(eps; mu) with eps = -ln(1 - (1 - e^-eps') / q). That is at most
    the other profile, so that `reach` is of both. Here mu is one term's norm over the noise.

    References: Zhu, Dong and Wang 2022, Theorem 11 (both orders dominate, and so do their compositions).
    """

    added: bool = False

    @property
    def reverse(self) -> Self:
        """See `Pair`."""
        return replace(self, added=not self.added)

    @property
    def largest(self) -> float:
        """See `Pair`."""
        return -math.log1p(-self.q) if self.added else math.inf

    def profile(self, epsilon: Array) -> Array:
        """Return the profile above for eps' = epsilon >= 0, shape as epsilon."""
        if not self.added:
            return SubsampledPair.profile(self, epsilon)
        left = np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon + math.log1p(-self.q))))
        base = epsilon + math.log(self.q) - np.log(np.maximum(left, _SMALLEST))
        return left * gaussian.profile(base, self.mu)


@lru_cache(maxsize=4096)
def multiplicities(n: float, draws: int) -> tuple[Array, Array]:
    """P(j) and P(more than j) for j = 0, 1, ...: how often a record of chance 1 / n is among `draws`.

    By the ratio of neighbours, which keeps relative accuracy; at most some 170 entries.
    """
    chance = [math.exp(draws * math.log1p(-1 / n))]
    while len(chance) <= draws and chance[-1] > _SMALLEST:
        j = len(chance) - 1
        chance.append(chance[-1] * (draws - j) / ((j + 1) * (n - 1)))
    rest = 0.0 if len(chance) > draws else _SMALLEST
    more = np.append(np.cumsum(chance[:0:-1])[::-1], 0.0) + rest
    return np.array(chance), more


@dataclass(frozen=True, slots=True)
class WithReplacementPair(Pair):
    """A Gaussian release on K records drawn with replacement from n; eta = 1 - (1 - 1/n)^K.

    h(eps') = sum_{j >= 1} Binom(K, 1/n)(j) h(eps; j mu) with eps' = ln(1 + eta (e^eps - 1)), eps >= 0: an
    upper bound on every two neighbouring data sets in either order, so that the symmetric continuation
    below zero (`pairs`) is one too. The function is convex in e^eps', hence the profile of a pair, which
    then dominates. Multiplicities left out count as infinite loss.

    References: Balle, Barthe and Gaboardi 2018, Theorem 10 (with Gaussian group privacy h(eps; j mu)).
    """

    mu: float  # sensitivity / noise standard deviation of a record drawn once, > 0
    n: float  # number of records, >= 2; in groups of k (`fedsim.privacy.groups`) over k, > 1
    draws: int  # K, from 1 to n

    @property
    def q(self) -> float:
        """The mean multiplicity K / n."""
        return self.draws / self.n

    @property
    def eta(self) -> float:
        """The probability that a record is drawn at all."""
        return -math.expm1(self.draws * math.log1p(-1 / self.n))

    def most(self, tail: float) -> tuple[int, float]:
        """(j, P(more than j)): a multiplicity exceeded with probability at most `tail` >= 1e-290; j >= 1."""
        _, more = multiplicities(self.n, self.draws)
        j = max(1, int(np.argmax(more <= tail))) if more[-1] <= tail else len(more) - 1
        return j, float(more[j])

    def profile(self, epsilon: Array) -> Array:
        """Return the profile above for eps' = epsilon >= 0, shape as epsilon, rounded up by up to 1e-3."""
        base = np.atleast_1d(unamplified(epsilon, self.eta))
        chance, means, more = self._terms(float(base.max()))
        pieces = np.array_split(base, 1 + len(base) // _PIECE)
        total = np.concatenate([chance @ gaussian.profile(piece, means[:, None]) for piece in pieces])
        return np.asarray(total + more).reshape(np.shape(epsilon))

    def _terms(self, largest: float) -> tuple[Array, Array, float]:
        """P(j) and j mu for j = 1, ..., J, and P(more than J), which is small to the profile at `largest`."""
        chance, more = multiplicities(self.n, self.draws)
        means = self.mu * np.arange(1, len(chance), dtype=np.float64)
        least = np.cumsum(chance[1:] * gaussian.profile(largest, means))
        few = more[1:] <= _ACCURATE * least
        count = int(np.argmax(few)) + 1 if few.any() else len(means)
        return chance[1 : count + 1], means[:count], float(more[count])

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`."""
        j, _ = self.most(tail / 4)
        chance = multiplicities(self.n, self.draws)[0][1 : j + 1]
        means = self.mu * np.arange(1, j + 1, dtype=np.float64)
        low, high = 0.0, 1.0
        while _mixed(high, chance, means) > tail / 2:
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if _mixed(middle, chance, means) > tail / 2 else (low, middle)
            if high - low <= 1e-3 * high:
                break
        return amplified(high, self.eta)


def _mixed(base: float, chance: Array, means: Array) -> float:
    return float(chance @ gaussian.profile(base, means))


SampledPair = SubsampledPair | PoissonPair | AddRemovePair | WithReplacementPair | ChoicePair
ReleasePair = GaussianPair | SampledPair


def profile(pair: Pair, epsilon: npt.ArrayLike) -> Array:
    """Return the profile of `pair` at losses of either sign (the continuation of the module docstring)."""
    eps = np.asarray(epsilon, float)
    other = pair.reverse.profile(np.abs(eps))
    below = -np.expm1(np.minimum(eps, 0.0)) + np.exp(np.minimum(eps, 0.0)) * other
    return np.where(eps < 0, below, pair.profile(np.abs(eps)))


def _asinh_exp(u: Array) -> Array:
    """asinh(e^u) without overflow."""
    return np.asarray(np.logaddexp(u, 0.5 * np.logaddexp(0.0, 2 * u)))
