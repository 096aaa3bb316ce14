"""Noise of proximal SPIDER: A. Lowy, thesis (USC 2023), Theorems 44 and 149, and Algorithm 25."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Batch
from fedsim.theory.minibatch_noise import experiments_batches
from fedsim.theory.theorem import Check, Context, NoisyMean, at_most, sampled_by


@dataclass(frozen=True)
class ProxSPIDERNoise:
    """Up to three noises: on gradients, and on differences min(sigma_2 |w - w_previous|, hat sigma_2).

        sigma_1^2 = 16 L^2 ln(1/delta) max(R/q, 1) / (eps^2 n^2),
        sigma_2^2 = 16 beta^2 R ln(1/delta) / (eps^2 n^2)       where beta is known,
        hat sigma_2^2 = 64 L^2 R ln(1/delta) / (eps^2 n^2),     eps <= 2 ln(1/delta), K = n.

    Erratum: gradients alone and differences alone each spend the whole zCDP budget eps^2 / (8 ln(1/delta)),
    so the run spends it almost twice; the exact epsilon exceeds the claim from about 8 on.

    Args:
        claim: n_i, eps_i, delta_i.
        clip: L.
        rounds: R.
        period: q.
        batch: of gradients; the theorem takes every record.
        difference_batch: of differences; the same.
        smoothness: beta, or None where only clipping bounds a difference.
        difference_clip: bound on a difference, 2 L by default.
    """

    title: ClassVar[str] = "prox-SPIDER (Theorems 44, 149)"
    claim: Budget
    clip: float
    rounds: int
    period: int
    batch: Batch = FULL
    difference_batch: Batch = FULL
    smoothness: float | None = None
    difference_clip: float | None = None

    @property
    def phases(self) -> float:
        """max(R/q, 1): the gradients that share a budget."""
        return max(self.rounds / self.period, 1.0)

    def releases(self) -> tuple[NoisyMean, ...]:
        """Gradients every q rounds, differences in between; with beta, per unit of |w - w_previous|."""
        fresh, n = math.ceil(self.rounds / self.period), self.claim.n
        unit = 4 * math.sqrt(math.log(1 / self.claim.delta)) / (self.claim.epsilon * self.claim.n)
        first = unit * self.clip * math.sqrt(self.phases)
        if self.smoothness is not None:
            bound, second = self.smoothness, unit * self.smoothness * math.sqrt(self.rounds)
        else:
            bound = 2 * self.clip if self.difference_clip is None else self.difference_clip
            second = 2 * unit * self.clip * math.sqrt(self.rounds)
        return (
            NoisyMean(self.batch, fresh, first, self.clip, n),
            NoisyMean(self.difference_batch, self.rounds - fresh, second, bound, n),
        )

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """Epsilon range, full batches."""
        bound = 2 * math.log(1 / self.claim.delta)
        return (
            at_most("eps <= 2 ln(1/delta)", "privacy.claimed_epsilon", self.claim.epsilon, bound),
            *sampled_by([self.batch, self.difference_batch], ("full",), "K = n"),
        )


@dataclass(frozen=True)
class SPIDERExperiments(ProxSPIDERNoise):
    """The noise of Theorem 44 as the experiments of B.2.4 have it, on K = n sqrt(eps) / (2 sqrt R) records.

    There beta is unknown, so that differences are clipped at 2 L and bear hat sigma_2. The theorem is for
    K = n alone: for batches nothing is proven.
    """

    title: ClassVar[str] = "prox-SPIDER, the experiments' (Algorithm 4, B.2.4)"

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """K minimum of both batches, sampler."""
        return experiments_batches(self.claim, self.rounds, self.batch, self.difference_batch)


@dataclass(frozen=True)
class SPIDERCode(SPIDERExperiments):
    """As the published code has it: sigma_1^2 = 16 L^2 ln(1/delta) / (eps^2 n^2), without max(R/q, 1)."""

    title: ClassVar[str] = "prox-SPIDER, the experiments' code"

    @property
    def phases(self) -> float:
        """As if there were one gradient."""
        return 1.0


@dataclass(frozen=True)
class AlternateSPIDERNoise:
    """Algorithm 25 with the noise of the experiments of B.2.4, stated without proof:

        s_1^2 = 32 L^2 R ln(2/delta) / (n^2 eps^2) on differences (odd rounds),
        s_2^2 = 8 L^2 R ln(2/delta) / (n^2 eps^2) on gradients (even rounds),
        K = n sqrt(eps) / (2 sqrt R).

    Args:
        claim: n_i, eps_i, delta_i.
        clip: L.
        rounds: R.
        batch: of gradients.
        difference_batch: of differences.
        difference_clip: bound on a difference, 2 L by default.
    """

    title: ClassVar[str] = "alternate SPIDER (Algorithm 25, B.2.4)"
    claim: Budget
    clip: float
    rounds: int
    batch: Batch
    difference_batch: Batch
    difference_clip: float | None = None

    def releases(self) -> tuple[NoisyMean, ...]:
        """Gradients in even rounds, differences in odd ones."""
        claim, fresh = self.claim, (self.rounds + 1) // 2
        logs = 8 * self.rounds * math.log(2 / claim.delta)
        first = self.clip * math.sqrt(logs) / (claim.n * claim.epsilon)
        bound = 2 * self.clip if self.difference_clip is None else self.difference_clip
        odd, n = self.rounds - fresh, claim.n
        return (
            NoisyMean(self.batch, fresh, first, self.clip, n),
            NoisyMean(self.difference_batch, odd, 2 * first, bound, n),
        )

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """K minimum of both batches, sampler."""
        return experiments_batches(self.claim, self.rounds, self.batch, self.difference_batch)
