"""K draws with replacement: how often one record is drawn, and the proven bound of one release.

The multiplicity j of a record follows Binom(K, 1/n). Replacing a record drawn j times moves the clipped
sum by up to 2 C j, so that the release is Gaussian of j mu given j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsim.privacy import gaussian

Array = npt.NDArray[np.float64]

_SMALLEST = 1e-290  # multiplicities rarer than this are not told apart
_ACCURATE = 1e-3  # share of the profile that multiplicities may be left out of, and counted as infinite loss
_HALVINGS = 60
_PIECE = 4096  # losses evaluated at once, times some 20 multiplicities


def amplified(epsilon: float, q: float) -> float:
    """eps' of a release that is eps where the record takes part, which has probability q in (0, 1).

    >>> round(amplified(1.0, q=0.1), 4)
    0.1586
    """
    return float(np.logaddexp(math.log1p(-q), math.log(q) + epsilon))


def unamplified(epsilon: Array, q: float) -> Array:
    """Return the eps with eps' = `epsilon` >= 0: ln(1 + (e^eps' - 1) / q)."""
    # The first form is accurate near 0, the second cannot overflow.
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
    far = epsilon - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(epsilon, 1.0)))
    return np.where(epsilon < 1.0, near, far)


@lru_cache(maxsize=4096)
def multiplicities(n: int, draws: int) -> tuple[Array, Array]:
    """P(j) and P(more than j) for j = 0, 1, ...: how often one of n >= 2 records is among `draws` <= n.

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
class WithReplacementPair:
    """A Gaussian release on K records drawn with replacement from n; eta = 1 - (1 - 1/n)^K.

    h(eps') = sum_{j >= 1} Binom(K, 1/n)(j) h(eps; j mu) with eps' = ln(1 + eta (e^eps - 1)), eps >= 0: an
    upper bound on every two neighbouring data sets in either order, so that the symmetric continuation
    below zero (`pairs`) is one too. The function is convex in e^eps', hence the profile of a pair, which
    then dominates. Multiplicities left out count as infinite loss.

    Args:
        mu: sensitivity / noise standard deviation of a record drawn once, > 0.
        n: number of records, >= 2.
        draws: K, from 1 to n.

    References: Balle, Barthe and Gaboardi 2018, Theorem 10 (with Gaussian group privacy h(eps; j mu)).
    """

    mu: float
    n: int
    draws: int

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
