"""Sums over silos from an oracle of which nothing is known but its privacy, as in the thesis's Lemma 136.

The theorems of the shuffle model ask P_vec for sums over silos, each (eps, delta)-DP for replacing one of
the records that are in it, and say nothing else of its noise. Two oracles stand for what that allows:

* the one that reveals most: randomised response between two values that fails, and then tells everything,
  with probability delta. It composes to at least as much as any other (Kairouz, Oh and Viswanath 2015);
* the least Gaussian noise on the sum that keeps (eps, delta).

Without sampling the first one's cost is exact. With it, a record that is in the sum with probability q is
told apart as (1 - q) Q + q P from Q, P and Q being the randomised response's: a lower bound of what such an
oracle can cost.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Batch, Fresh
from fedsim.theory.theorem import Check, NoisyMean

Array = npt.NDArray[np.float64]

_HALVINGS = 60
_ROUNDING = 1e-9  # share of delta that floating point is allowed
_MOST = 700.0  # e to it is still a number


@dataclass(frozen=True, slots=True)
class Call:
    """Sums that the oracle is asked for.

    Args:
        epsilon: of one sum.
        delta: of one sum.
        count: how many in the run.
        batch: which records of a silo are in it.
        clip: bound on a record's term.
        present: probability that a silo is in the sum, as far as nobody else knows which are.
    """

    epsilon: float
    delta: float
    count: int
    batch: Batch
    clip: float
    present: float = 1.0

    def rate(self, n: int) -> float:
        """Probability that a record of a silo of n is in the sum; of disjoint batches, in one of them."""
        drawn = 1.0 if isinstance(self.batch, Fresh) else min(1.0, self.batch.size(n) / n)
        return self.present * drawn


@dataclass(frozen=True)
class OracleTheorem(ABC):
    """A theorem whose plan is calls of the oracle.

    Args:
        claim: n, and eps and delta of the whole run, for every silo's records.
        clip: L.
        silos: N.
        active: M, silos in a round.
    """

    title: ClassVar[str]
    claim: Budget
    clip: float
    silos: int
    active: int

    @abstractmethod
    def calls(self) -> tuple[Call, ...]:
        """What is asked of the oracle: gradients first; then differences, where there are any."""

    @property
    @abstractmethod
    def checks(self) -> tuple[Check, ...]:
        """Every side condition that can be checked."""

    @property
    def releases(self) -> tuple[NoisyMean, ...]:
        """The least Gaussian noise on each sum that keeps what the oracle promises, where M = N."""
        n = self.claim.n
        return tuple(
            NoisyMean(call.batch, call.count, _least_sigma(call, n), call.clip, n) for call in self.calls()
        )


def _least_sigma(call: Call, n: int) -> float:
    """Sigma on the sum of the silos' means: a record moves it by as much as its own silo's."""
    return 2 * call.clip / call.batch.size(n) / float(gaussian.mu(call.epsilon, call.delta))


def worst_epsilon(calls: Iterable[Call], n: int, delta: float) -> float:
    """Epsilon at `delta` of a run of `calls` to the oracle that reveals most; see the module.

    Args:
        n: records of the silo.
    """
    groups = [_Responses.of(call, n) for call in calls if call.count]
    told = -math.expm1(sum(group.count * math.log1p(-group.rate * group.delta) for group in groups))
    there, absent = _tables(groups)
    left = delta * (1 + _ROUNDING) - told
    found, low, high = math.inf, 0.0, _MOST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = np.maximum(there - math.exp(middle) * absent, 0.0).sum() <= left
        low, high, found = (low, middle, middle) if enough else (middle, high, found)
    return found


@dataclass(frozen=True, slots=True)
class _Responses:
    """`count` randomised responses of failure chance delta; the record is in each with probability rate.

    A failure tells for certain, whether the record is there or not. Given that there is none, a yes has
    chance p where the record is there, and q where it is not.
    """

    count: int
    rate: float
    delta: float
    p: float
    q: float

    @staticmethod
    def of(call: Call, n: int) -> _Responses:
        """A record in one of many disjoint batches meets one call."""
        rate, count = call.rate(n), 1 if isinstance(call.batch, Fresh) else call.count
        yes, no = 1 / (1 + math.exp(-call.epsilon)), 1 / (1 + math.exp(call.epsilon))
        return _Responses(count, rate, call.delta, (1 - rate) * no + rate * yes, no)


def _tables(groups: Sequence[_Responses]) -> tuple[Array, Array]:
    """Chances of every number of yeses where nothing fails, with the record and without it.

    What failures of an absent record's responses would add is left out.
    """
    unharmed = math.exp(sum(group.count * math.log1p(-group.delta) for group in groups))
    there, absent = np.full(1, unharmed), np.full(1, unharmed)
    for group in groups:
        k = np.arange(group.count + 1)
        there = np.outer(there, binom.pmf(k, group.count, group.p)).ravel()
        absent = np.outer(absent, binom.pmf(k, group.count, group.q)).ravel()
    return there, absent
