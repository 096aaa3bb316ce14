"""One release of each sampler as a symmetric dominating pair, given by its profile.

A pair (P, Q) dominates a mechanism if for every eps the hockey-stick divergence of the pair,
h(eps) = sup_S P(S) - e^eps Q(S), is at least that of the mechanism on any two neighbouring data sets;
then delta <= h(eps), also after composing the pairs of adaptively chosen releases.

Under replace-one every pair here is symmetric: exchanging P and Q leaves the profile as it is, hence

    h(eps) = 1 - e^eps + e^eps h(-eps)    for eps < 0.

That continuation is part of the claim. Continuing the formula for eps >= 0 below zero under-reports,
and leaving the losses below zero out over-reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.privacy import gaussian
from fedsim.privacy.with_replacement import WithReplacementPair, amplified, unamplified

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GaussianPair:
    """N(mu, 1) against N(0, 1): one release on every record.

    Args:
        mu: sensitivity / noise standard deviation, > 0.
    """

    mu: float

    def profile(self, epsilon: Array) -> Array:
        """h(eps; mu) for eps >= 0."""
        return gaussian.profile(epsilon, self.mu)

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`: h(eps) <= Phi(mu/2 - eps/mu)."""
        return max(self.mu * (self.mu / 2 - float(special.ndtri(tail))), self.mu**2)


@dataclass(frozen=True, slots=True)
class SubsampledPair:
    """A Gaussian release on a uniform K-subset of n records drawn without replacement, q = K/n.

    h(eps') = q h(eps; mu) with eps' = ln(1 + q (e^eps - 1)) for eps >= 0.

    Args:
        mu: sensitivity / noise standard deviation given that the record is in the subset, > 0.
        q: K / n, in (0, 1).

    References: Zhu, Dong and Wang 2022, Proposition 30; Lebeda et al. 2024 (arXiv 2405.20769).
    """

    mu: float
    q: float

    def profile(self, epsilon: Array) -> Array:
        """Return the profile above for eps' = epsilon >= 0, shape as epsilon."""
        return gaussian.profile(unamplified(epsilon, self.q), self.mu) * self.q

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`."""
        base = GaussianPair(self.mu).reach(min(0.5, tail / self.q))
        return amplified(base, self.q)


@dataclass(frozen=True, slots=True)
class PoissonPair:
    """A Gaussian release on a Poisson sample: (1-q) N(0) + q N(m) against (1-q) N(0) + q N(-m), m = mu/2.

    The likelihood ratio grows with x, so {ratio > e^eps} is a half line {x > t}; with y = e^(m x),
    c = q e^(-m^2/2) it ends where c y^2 - (1-q)(e^eps - 1) y - c e^eps = 0, that is

        m t = eps/2 + asinh((1-q) sinh(eps/2) / c).

    Args:
        mu: sensitivity / noise standard deviation, > 0; the sensitivity of the sampled sum over its
            public divisor q n is 2C/(q n), twice the distance of either component from the centre.
        q: probability that a record is sampled, in (0, 1).

    References: the pair is the one that dp-accounting's PLD accountant uses under REPLACE_ONE.
    """

    mu: float
    q: float

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
        log_c = math.log(self.q) - self.mu**2 / 8
        return np.asarray(math.log1p(-self.q) + log_sinh - log_c)

    def reach(self, tail: float) -> float:
        """Return a loss beyond which the profile is at most `tail`."""
        m, q = self.mu / 2, self.q
        x = max(-float(special.ndtri(tail / 2)), m - float(special.ndtri(min(0.5, tail / (2 * q)))))
        upper = np.logaddexp(math.log1p(-q), math.log(q) + m * x - m * m / 2)
        lower = np.logaddexp(math.log1p(-q), math.log(q) - m * x - m * m / 2)
        return float(upper - lower)


SampledPair = SubsampledPair | PoissonPair | WithReplacementPair
Pair = GaussianPair | SampledPair


def profile(pair: Pair, epsilon: npt.ArrayLike) -> Array:
    """Return the profile of `pair` at losses of either sign (the symmetric continuation below zero)."""
    eps = np.asarray(epsilon, float)
    mirrored = pair.profile(np.abs(eps))
    below = -np.expm1(np.minimum(eps, 0.0)) + np.exp(np.minimum(eps, 0.0)) * mirrored
    return np.where(eps < 0, below, mirrored)


def _asinh_exp(u: Array) -> Array:
    """asinh(e^u) without overflow."""
    return np.asarray(np.logaddexp(u, 0.5 * np.logaddexp(0.0, 2 * u)))
