"""What a theorem states: the noise of each release, its conditions, and the numbers that it chooses.

Adjacency is replace-one throughout, L is the bound that records' terms are clipped to, and logarithms
are natural. A noise multiplier is sigma / (L2 sensitivity of that release), so that a theorem's sigma is
added whatever bound the release is clipped to. What the noise truly costs is what `fedsim.privacy` computes
for the plan that the theorem describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Batch
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.statistics import OPPOSITE


@dataclass(frozen=True, slots=True)
class Check:
    """One side condition of a theorem with the value that it meets."""

    condition: str  # in the theorem's symbols
    field: str  # the scenario field to change, without `scenario.`
    value: float | str  # what the scenario has
    bound: str  # what the theorem requires, in words and numbers
    holds: bool  # whether it is met


@dataclass(frozen=True, slots=True)
class NoisyMean:
    """One kind of release in a plan, with the noise that the theorem states for it."""

    batch: Batch  # which records
    count: int  # how often it happens in the run
    sigma: float  # standard deviation per coordinate on the silo's mean
    clip: float  # bound on a record's term, in the unit of sigma
    n: int  # the silo's records

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of that mean to replacing one record, in the unit of sigma."""
        return OPPOSITE * self.clip / self.batch.size(self.n)

    @property
    def multiplier(self) -> float:
        """z = sigma / sensitivity."""
        return self.sigma / self.sensitivity


@dataclass(frozen=True)
class Theorem:
    """What a theorem states at given numbers, for one silo."""

    title: str  # its name and number
    claim: Budget  # the silo's n, and the epsilon and delta that the theorem claims
    releases: tuple[NoisyMean, ...]  # gradients first; then differences, where there are any
    checks: tuple[Check, ...]  # every side condition that can be checked

    @property
    def multiplier(self) -> float:
        """z of the first kind of release, which a plan's noise ratios refer to."""
        return self.releases[0].multiplier

    @property
    def difference_ratio(self) -> float:
        """z of a difference over z of a gradient; 1 where there are no differences."""
        return self.releases[-1].multiplier / self.multiplier


@dataclass(frozen=True)
class Derived:
    """The numbers that a theorem chooses for its algorithm."""

    theorem: str  # its name and number
    values: dict[str, Any]  # {field of the algorithm: value}; a batch as in a scenario
    notes: dict[str, Any] = field(default_factory=dict)  # {symbol: value} that the algorithm has no field for
    # what the theorem expects with the noise that is really added, constants set to one: V, the root
    # mean squared error of a round's mean gradient, and a bound. Empty for a theorem's own noise
    predicted: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why, by field; empty: the theorem

    def beside(self, other: Derived | None) -> Derived:
        """What two theorems, or a theorem and `auto`, chose for one algorithm."""
        if other is None:
            return self
        values, notes = self.values | other.values, self.notes | other.notes
        predicted, reasons = self.predicted | other.predicted, self.reasons | other.reasons
        return Derived(f"{self.theorem}; {other.theorem}", values, notes, predicted, reasons)


@dataclass(frozen=True)
class EpsilonRange:
    """The range of epsilon that a theorem is stated for."""

    condition: str  # in the theorem's symbols
    most: Callable[[float], float]  # delta to the largest epsilon

    def check(self, claim: Budget, field: str = "privacy.claimed_epsilon") -> Check:
        """Check a silo's epsilon against the range; `field` is the scenario field to change."""
        return at_most(self.condition, field, claim.epsilon, self.most(claim.delta))


ADVANCED_COMPOSITION = EpsilonRange("eps <= 2 ln(2/delta)", lambda delta: 2 * math.log(2 / delta))
ONE_GAUSSIAN = EpsilonRange("eps <= 8 ln(1/delta)", lambda delta: 8 * math.log(1 / delta))
PROX_SGD = EpsilonRange("eps <= min(8 ln(1/delta), 15)", lambda delta: min(8 * math.log(1 / delta), 15.0))
RESTARTS = EpsilonRange("eps <= min(2 ln(2/delta), 15)", lambda delta: min(2 * math.log(2 / delta), 15.0))
SPIDER = EpsilonRange("eps <= 2 ln(1/delta)", lambda delta: 2 * math.log(1 / delta))
SPIDER_SDP = EpsilonRange("eps <= ln(1/delta)", lambda delta: math.log(1 / delta))
SHUFFLED = EpsilonRange("eps <= ln(2/delta)", lambda delta: math.log(2 / delta))
ORACLE = EpsilonRange("eps <= 15", lambda delta: 15.0)  # the range of P_vec (Lemma 136)


def delta_below_half(delta: float, field: str = "privacy.claimed_delta") -> Check:
    """Return the check delta < 1/2."""
    return Check("delta < 1/2", field, delta, "below 0.5", delta < 0.5)


def at_most(condition: str, field: str, value: float, bound: float) -> Check:
    """Return the check value <= bound."""
    return Check(condition, field, value, f"at most {bound:.6g}", value <= bound * (1 + 1e-12))


def at_least(condition: str, field: str, value: float, bound: float) -> Check:
    """Return the check value >= bound."""
    return Check(condition, field, value, f"at least {bound:.6g}", value >= bound * (1 - 1e-12))


def sampled_by(batches: Iterable[Batch], allowed: tuple[str, ...], symbol: str) -> tuple[Check, ...]:
    """Check that every batch is drawn as the theorem's proof needs it."""
    names = sorted({batch.sampler for batch in batches})
    bound = " or ".join(allowed)
    return tuple(Check(symbol, "algorithm.batch.sampler", name, bound, name in allowed) for name in names)


@dataclass(frozen=True)
class Prescribed:
    """Noise that is fixed beforehand, silo by silo in canonical order."""

    noise_multipliers: tuple[float, ...]  # z_i, sigma / L2 sensitivity of a gradient
    theorem: str | None = None  # that states it for `Premises.claims`; None where it is given
    violations: tuple[str, ...] = ()  # conditions of the theorem that do not hold, one line each


MOST_ROUNDS = LIMITS.max_rounds  # the largest number of rounds that a silo admits by default


def smallest(holds: Callable[[int], bool], least: int = 1) -> int:
    """The smallest R >= least at which a monotone condition holds, by doubling and bisection.

    `MOST_ROUNDS` if it holds nowhere below.

    >>> smallest(lambda R: R * R >= 50)
    8
    """
    low, high = least - 1, least
    while not holds(high):
        if high >= MOST_ROUNDS:
            return MOST_ROUNDS
        low, high = high, min(2 * high, MOST_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
