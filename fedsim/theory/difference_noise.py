"""Noise of SPIDER and SVRG, which ask for gradient differences too: A. Lowy, thesis (USC 2023).

Proximal SPIDER: Theorems 44 and 149, and Algorithm 25. Prox-SVRG and its restarts: Theorems 42 and 148.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Batch
from fedsim.theory.gradient_noise import REDRAWN, experiments_batches, smallest_batch, variance
from fedsim.theory.theorem import RESTARTS, SPIDER, Check, Context, NoisyMean, at_least, sampled_by


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
        batches = [self.batch, self.difference_batch]
        return (SPIDER.check(self.claim), *sampled_by(batches, ("full",), "K = n"))


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


@dataclass(frozen=True)
class ProxSVRGNoise:
    """Two noises: on the full gradient of each epoch, and on the difference of each step; R = E Q.

        sigma_1^2 = 256 L^2 S E ln(2/delta) ln(5 E/delta) / (eps^2 n^2),
        sigma_2^2 = 1024 L^2 S R ln(2/delta) ln(2.5 R/delta) / (eps^2 n^2),
        eps <= min(2 ln(2/delta), 15),   K >= eps n / (4 sqrt(2 S R ln(2/delta))),   K >= (n^2/M)^(1/3).

    Errata: the proof derives the sensitivity 4 L / K of a difference and inserts the constant that belongs
    to 2 L / K, and has ln(5 R / delta) where the statement, which counts here, has ln(2.5 R / delta).
    Differences are clipped at their own bound, so sigma_2 is divided by the sensitivity it really meets.

    Args:
        claim: n_i, eps_i, delta_i.
        clip: L.
        difference_clip: bound on a record's gradient difference (2 L in the theorem).
        epochs: E.
        inner_steps: Q.
        batch: how the K records of a step are drawn.
        restarts: S.
    """

    title: ClassVar[str] = "prox-PL-SVRG (Theorems 42, 148)"
    claim: Budget
    clip: float
    difference_clip: float
    epochs: int
    inner_steps: int
    batch: Batch
    restarts: int = 1

    def releases(self) -> tuple[NoisyMean, ...]:
        """S E full gradients, sensitivity 2 L / n; S R differences, sensitivity 2 `difference_clip` / K."""
        claim, epochs, steps = self.claim, self.epochs, self.epochs * self.inner_steps
        first = math.sqrt(variance(self.clip, self.restarts * epochs, epochs, claim, factor=5))
        second = 2 * math.sqrt(variance(self.clip, self.restarts * steps, steps, claim))
        S, wide = self.restarts, self.difference_clip
        return (
            NoisyMean(FULL, S * epochs, first, self.clip, claim.n),
            NoisyMean(self.batch, S * steps, second, wide, claim.n),
        )

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """Epsilon range, both minima of K, sampler; the second minimum is what M minimum amounts to."""
        claim, size = self.claim, self.batch.size(self.claim.n)
        least = smallest_batch(claim, self.restarts * self.epochs * self.inner_steps)
        useful = (claim.n**2 / context.active) ** (1 / 3)
        return (
            RESTARTS.check(claim),
            at_least("K >= eps n / (4 sqrt(2 S R ln(2/delta)))", "algorithm.batch", size, least),
            at_least("K >= (n^2 / M)^(1/3)", "algorithm.batch", size, useful),
            *sampled_by([self.batch], REDRAWN, "K records drawn anew"),
        )
