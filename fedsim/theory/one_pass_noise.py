"""Noise of the theorems that use each record once: disjoint batches, one Gaussian release a record.

A. Lowy, thesis (USC 2023). Parallel composition: the run costs what one release costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsim.theory.theorem import Check, Context, NoisyGradients, at_least, at_most, sampled_by


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
        """As in the class."""
        return math.sqrt(self.variance())

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """Epsilon range, disjoint batches."""
        bound = 8 * math.log(1 / self.claim.delta)
        return (
            at_most("eps <= 8 ln(1/delta)", "privacy.claimed_epsilon", self.claim.epsilon, bound),
            *sampled_by([self.batch], ("fresh",), "disjoint batches"),
        )


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
        bound = min(8 * math.log(1 / claim.delta), 15.0)
        checks = (
            at_most("eps <= min(8 ln(1/delta), 15)", "privacy.claimed_epsilon", claim.epsilon, bound),
            at_most("delta < 1/2", "privacy.claimed_delta", claim.delta, math.nextafter(0.5, 0)),
            *sampled_by([self.batch], ("fresh",), "disjoint batches"),
        )
        kappa = context.condition_number
        if kappa is None:
            return checks
        return (*checks, at_least("n >= kappa", "partition", claim.n, kappa))
