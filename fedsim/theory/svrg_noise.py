"""Noise of prox-SVRG and its restarts: A. Lowy, thesis (USC 2023), Theorems 42 and 148."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Batch
from fedsim.theory.minibatch_noise import REDRAWN, smallest_batch, variance
from fedsim.theory.theorem import Check, Context, NoisyMean, at_least, at_most, sampled_by


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
        bound = min(2 * math.log(2 / claim.delta), 15.0)
        least = smallest_batch(claim, self.restarts * self.epochs * self.inner_steps)
        useful = (claim.n**2 / context.active) ** (1 / 3)
        return (
            at_most("eps <= min(2 ln(2/delta), 15)", "privacy.claimed_epsilon", claim.epsilon, bound),
            at_least("K >= eps n / (4 sqrt(2 S R ln(2/delta)))", "algorithm.batch", size, least),
            at_least("K >= (n^2 / M)^(1/3)", "algorithm.batch", size, useful),
            *sampled_by([self.batch], REDRAWN, "K records drawn anew"),
        )
