"""Noise of ISRL-DP local SGD: A. Lowy, thesis (USC 2023), B.1.10."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Batch
from fedsim.theory.minibatch_noise import REDRAWN
from fedsim.theory.theorem import Check, Context, NoisyMean, at_most, sampled_by


@dataclass(frozen=True)
class LocalSGDNoise:
    """sigma^2 = 8 L^2 R K ln(1/delta) / (eps^2 n^2) on every local step, each on one record.

    The thesis states it without proof or range, as its experiments' formula with R K releases.

    Args:
        claim: n_i, eps_i, delta_i.
        clip: L.
        rounds: R.
        local_steps: K.
        batch: one record a step in the thesis.
    """

    title: ClassVar[str] = "local SGD (B.1.10)"
    claim: Budget
    clip: float
    rounds: int
    local_steps: int
    batch: Batch

    def releases(self) -> tuple[NoisyMean, ...]:
        """R K noisy gradients of sensitivity 2 L over the batch size."""
        claim, steps = self.claim, self.rounds * self.local_steps
        sigma = self.clip * math.sqrt(8 * steps * math.log(1 / claim.delta)) / (claim.epsilon * claim.n)
        return (NoisyMean(self.batch, steps, sigma, self.clip, claim.n),)

    def conditions(self, context: Context) -> tuple[Check, ...]:
        """One record a step, drawn anew."""
        size = self.batch.size(self.claim.n)
        return (
            at_most("one record a local step", "algorithm.batch", size, 1),
            *sampled_by([self.batch], REDRAWN, "records drawn anew"),
        )
