"""Clips for heavy-tailed gradients: A. Lowy, thesis (USC 2023), chapter 4, for silos with noise of their own.

Assumption 9: E|grad f(w, x)|^k <= r^k at every w, for one k >= 2; `moment_bound` is r, the k-th root of the
moment, in the unit of a gradient. A clip at C moves a mean gradient by at most B = r^k / ((k-1) C^(k-1)), by
Lemma 49, and has noise C s, s^2 the mean squared noise of a round's mean at clip 1. With Sigma^2 = C^2 s^2
and the variance of drawn records, the excess risk after T rounds is at most

    beta D^2 / T^2 + D (Sigma + B) / sqrt(T) + B D                    of Algorithm 8, AC-SA (Proposition 172),
    32 beta D^2 e^(-T / (4 kappa)) + 72 Sigma^2 / (mu T) + 2 B^2 / mu of Algorithm 27, SGD (Proposition 174),
    (1 - mu / (2 beta))^T Delta + 4 (B^2 + Sigma^2) / mu              of Algorithm 29, prox-SGD (Prop. 177).

So B stands beside C s / sqrt(T) where steps average noise, beside C s where the last iterate is the answer.
With k - 1 and other constants set to one, as the thesis does, they are equal at

    C = r (2 sqrt(T) / s)^(1/k)   (Theorems 59 and 61),       C = r (2 / s)^(1/k)   (Theorem 63).

The theorems are central and state rho-zCDP, rho = eps^2 / 2. Gaussian noise of mu = eps is exactly that:
their eps is a silo's mu(epsilon_i, delta_i) (`fedsim.privacy.gaussian`), and none of (epsilon, delta). In the
mean of M like silos, each with n / T records a round, s = 2 sqrt(d) T / (mu n sqrt(M)), so that C is

    r (mu n sqrt(M) / sqrt(d T))^(1/k)     and     r (mu n sqrt(M) / (sqrt(d) T))^(1/k),

the thesis's at M = 1. It does not print the C of Theorem 63; this one gives the rate that it states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Batch
from fedsim.theory.theorem import NoisyMean, Theorem, sampled_by


@dataclass(frozen=True)
class ClipRule:
    """A theorem's clip for its algorithm."""

    theorem: str  # its name and number
    averages: bool  # whether steps average the noise of rounds, or the last iterate keeps it
    curved: bool = False  # whether the algorithm must be told strong convexity

    def clip(self, k: float, r: float, noise: float, rounds: int) -> float:
        """C for moment k and its root r; `noise` is s, the root mean squared noise of a round at clip 1."""
        return r * math.pow(2 * math.sqrt(rounds if self.averages else 1) / noise, 1 / k)


CLIPS = {
    "accelerated_minibatch_sgd": ClipRule("noisy clipped AC-SA (Theorem 59)", averages=True),
    "noisy_minibatch_sgd": ClipRule("noisy clipped SGD (Theorem 61)", averages=True, curved=True),
    "prox_sgd": ClipRule("noisy clipped prox-SGD (Theorem 63)", averages=False),
}
"""{algorithm: the rule of its theorem}; other algorithms have none for heavy tails."""


def bias(k: float, r: float, clip: float) -> float:
    """B, the most that a clip moves a mean gradient: r^k / ((k - 1) C^(k - 1)) (Lemma 49)."""
    return r * math.pow(r / clip, k - 1) / (k - 1)


def clipped(claim: Budget, clip: float, rounds: int, batch: Batch) -> Theorem:
    """Theorems 59, 61 and 63: sigma^2 = 4 C^2 / (K eps)^2 on disjoint batches of K records (Algorithm 5).

    Their eps is that of (eps^2 / 2)-zCDP: the run's mu is eps. `claim` reads it as one of (epsilon, delta).
    """
    sigma = 2 * clip / (batch.size(claim.n) * claim.epsilon)
    checks = sampled_by([batch], ("fresh",), "disjoint batches")
    title = "clipped AC-SA, SGD and prox-SGD for heavy tails (Theorems 59, 61, 63)"
    return Theorem(title, claim, (NoisyMean(batch, rounds, sigma, clip, claim.n),), checks)
