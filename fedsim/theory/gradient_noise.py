"""Noise of the theorems that ask for gradients alone: A. Lowy, thesis (USC 2023).

Most rest on amplification by sampling and advanced composition. Theorems 34, 104 and 106 (noisy MB-SGD), 140
(the same per silo), 37, 129 and 131 (accelerated, empirical risk):

    sigma^2 = 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n^2 eps^2),
    eps <= 2 ln(2 / delta),   K >= eps n / (4 sqrt(2 R ln(2 / delta))).

Errata. Theorem 140 prints n where n_i is meant: here n is that of the silo. The proofs draw with
replacement and neglect that a record can be drawn twice: with replacement the sensitivity is more than
2 L / K in such a batch, which the accountant prices and the proof does not; without replacement the
statement holds as proven. For non-smooth losses (Theorems 106, 131) the envelope is 2L-Lipschitz where
the theorem keeps L; terms are clipped at L here, so sigma is right for what is released.

Theorems 36 and 40 use each record once, in disjoint batches: the run costs what one release costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Batch
from fedsim.theory.theorem import (
    ADVANCED_COMPOSITION,
    ONE_GAUSSIAN,
    PROX_SGD,
    Check,
    Context,
    NoisyGradients,
    at_least,
    at_most,
    delta_below_half,
    sampled_by,
)

REDRAWN = ("with_replacement", "subsample", "full")
"""Samplers under which the amplification lemma holds; a full batch (K = n) is its trivial case."""


def variance(clip: float, count: float, rounds: float, claim: Budget, factor: float = 2.5) -> float:
    """256 L^2 count ln(factor rounds / delta) ln(2 / delta) / (n^2 eps^2)."""
    logs = math.log(factor * rounds / claim.delta) * math.log(2 / claim.delta)
    return 256 * clip**2 * count * logs / (claim.n * claim.epsilon) ** 2


def smallest_batch(claim: Budget, count: float) -> float:
    """eps n / (4 sqrt(2 count ln(2 / delta))): from this K on the epsilon of one round is at most 1."""
    return claim.epsilon * claim.n / (4 * math.sqrt(2 * count * math.log(2 / claim.delta)))


def experiments_batches(claim: Budget, rounds: int, *batches: Batch) -> tuple[Check, ...]:
    """K >= n sqrt(eps) / (2 sqrt R), rounded down as the published code does, and the sampler."""
    least = math.floor(claim.n * math.sqrt(claim.epsilon) / (2 * math.sqrt(rounds)))
    size = min(batch.size(claim.n) for batch in batches)
    return (
        at_least("K >= n sqrt(eps) / (2 sqrt R)", "algorithm.batch", size, least),
        *sampled_by(batches, REDRAWN, "K records drawn anew"),
    )


@dataclass(frozen=True)
class NoisyMinibatch(NoisyGradients):
    """Theorems 34, 104 and 140, see the module."""

    title: ClassVar[str] = "noisy MB-SGD (Theorems 34, 104, 140)"

    @property
    def sigma(self) -> float:
        """Standard deviation per coordinate, by the module's formula."""
        return math.sqrt(variance(self.clip, self.rounds, self.rounds, self.claim))

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """Epsilon range of advanced composition, K minimum, sampler."""
        least = smallest_batch(self.claim, self.rounds)
        size = self.batch.size(self.claim.n)
        return (
            ADVANCED_COMPOSITION.check(self.claim),
            at_least("K >= eps n / (4 sqrt(2 R ln(2/delta)))", "algorithm.batch", size, least),
            *sampled_by([self.batch], REDRAWN, "K records drawn anew"),
        )


@dataclass(frozen=True)
class AcceleratedERM(NoisyMinibatch):
    """Theorems 37, 129 and 131: sigma and conditions exactly those of Theorem 34."""

    title: ClassVar[str] = "accelerated MB-SGD, empirical risk (Theorems 37, 129, 131)"


@dataclass(frozen=True)
class Experiments(NoisyGradients):
    """The formula of the thesis's convex experiments (3.2.5): sigma^2 = 8 L^2 R ln(1/delta) / (n^2 eps^2).

    With K = n sqrt(eps) / (2 sqrt R), taken from a theorem on Poisson sampling under add-or-remove whose
    constants are not stated; at C = L it does not keep its claim under replace-one.
    """

    title: ClassVar[str] = "the experiments' formula (3.2.5)"

    @property
    def sigma(self) -> float:
        """Standard deviation per coordinate, by the class's formula for `count` gradients."""
        logs = 8 * self.count * math.log(1 / self.claim.delta)
        return self.clip * math.sqrt(logs) / (self.claim.n * self.claim.epsilon)

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """K minimum and sampler."""
        return experiments_batches(self.claim, self.rounds, self.batch)


@dataclass(frozen=True)
class LocalSGDNoise(Experiments):
    """B.1.10: the experiments' formula with R K gradients, each on one record; without proof or range.

    Args:
        local_steps: K, steps a round.
    """

    title: ClassVar[str] = "local SGD (B.1.10)"
    local_steps: int

    @property
    def count(self) -> int:
        """R K."""
        return self.rounds * self.local_steps

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """One record a step, drawn anew."""
        size = self.batch.size(self.claim.n)
        return (
            at_most("one record a local step", "algorithm.batch", size, 1),
            *sampled_by([self.batch], REDRAWN, "records drawn anew"),
        )


@dataclass(frozen=True)
class AcceleratedOnePass(NoisyGradients):
    """Theorems 36 and 124: sigma^2 = 32 L^2 ln(1.25/delta) / (eps^2 K^2), eps <= 8 ln(1/delta), R = n/K."""

    title: ClassVar[str] = "accelerated MB-SGD, one pass (Theorems 36, 124)"

    def variance(self) -> float:
        """sigma^2."""
        size = self.batch.size(self.claim.n)
        return 32 * self.clip**2 * math.log(1.25 / self.claim.delta) / (self.claim.epsilon * size) ** 2

    @property
    def sigma(self) -> float:
        """Standard deviation per coordinate, by the class's formula."""
        return math.sqrt(self.variance())

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """Epsilon range, disjoint batches."""
        return (ONE_GAUSSIAN.check(self.claim), *sampled_by([self.batch], ("fresh",), "disjoint batches"))


@dataclass(frozen=True)
class ProxSGDNoise(AcceleratedOnePass):
    """Theorems 40, 144: sigma^2 = 8 L^2 ln(1/delta) / (eps^2 K^2), eps <= min(8 ln(1/delta), 15), n >= kappa.

    Erratum: this is half of what Proposition 8, which the proof cites, asks for, and that proposition
    needs eps <= 2 ln(1/delta); the exact epsilon exceeds the claim from about 8 on.
    """

    title: ClassVar[str] = "prox-SGD (Theorems 40, 144)"

    def variance(self) -> float:
        """sigma^2."""
        size = self.batch.size(self.claim.n)
        return 8 * self.clip**2 * math.log(1 / self.claim.delta) / (self.claim.epsilon * size) ** 2

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """Epsilon range, delta, disjoint batches, and n >= kappa where kappa is known."""
        claim = self.claim
        kappa = context.condition_number
        return (
            PROX_SGD.check(claim),
            delta_below_half(claim.delta),
            *sampled_by([self.batch], ("fresh",), "disjoint batches"),
            *(() if kappa is None else (at_least("n >= kappa", "partition", claim.n, kappa),)),
        )
