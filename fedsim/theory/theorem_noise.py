"""The noise that each theorem states, as printed: A. Lowy, thesis (USC 2023).

A function is a theorem (`fedsim.theory.theorem.Theorem`) at the numbers of a silo's plan; its docstring has
the formula and the errata. Arguments that recur: claim: n_i, eps_i, delta_i; clip: L; rounds: R; batch: how
K records are drawn; difference_clip: bound on a record's gradient difference, 2 L where it is None.

Most rest on amplification by sampling and advanced composition. Theorems 34, 104 and 106 (noisy MB-SGD), 140
(the same per silo), 37, 129 and 131 (accelerated, empirical risk):

    sigma^2 = 256 L^2 R ln(2.5 R / delta) ln(2 / delta) / (n^2 eps^2),
    eps <= 2 ln(2 / delta),   K >= eps n / (4 sqrt(2 R ln(2 / delta))).

Errata. Theorem 140 prints n where n_i is meant: here n is that of the silo. The proofs draw with
replacement and neglect that a record can be drawn twice: with replacement the sensitivity is more than
2 L / K in such a batch, which the accountant prices and the proof does not; without replacement the
statement holds as proven. For non-smooth losses (Theorems 106, 131) the envelope is 2L-Lipschitz where
the theorem keeps L; terms are clipped at L here, so sigma is right for what is released.
"""

from __future__ import annotations

import math
from functools import partial

from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Batch
from fedsim.theory import theorem
from fedsim.theory.theorem import Check, NoisyMean, Theorem, at_least, at_most, delta_below_half, sampled_by

_REDRAWN = ("with_replacement", "subsample", "full")
"""Samplers under which the amplification lemma holds; a full batch (K = n) is its trivial case."""


def variance(clip: float, count: float, rounds: float, claim: Budget, factor: float = 2.5) -> float:
    """256 L^2 count ln(factor rounds / delta) ln(2 / delta) / (n^2 eps^2)."""
    logs = math.log(factor * rounds / claim.delta) * math.log(2 / claim.delta)
    return 256 * clip**2 * count * logs / (claim.n * claim.epsilon) ** 2


def one_pass_variance(clip: float, claim: Budget, batch: Batch) -> float:
    """32 L^2 ln(1.25 / delta) / (eps^2 K^2)."""
    return 32 * clip**2 * math.log(1.25 / claim.delta) / (claim.epsilon * batch.size(claim.n)) ** 2


def smallest_batch(claim: Budget, count: float) -> float:
    """eps n / (4 sqrt(2 count ln(2 / delta))): from this K on the epsilon of one round is at most 1."""
    return claim.epsilon * claim.n / (4 * math.sqrt(2 * count * math.log(2 / claim.delta)))


def _experiments_batches(claim: Budget, rounds: int, *batches: Batch) -> tuple[Check, ...]:
    """K >= n sqrt(eps) / (2 sqrt R), rounded down as the published code does, and the sampler."""
    least = math.floor(claim.n * math.sqrt(claim.epsilon) / (2 * math.sqrt(rounds)))
    size = min(batch.size(claim.n) for batch in batches)
    return (
        at_least("K >= n sqrt(eps) / (2 sqrt R)", "algorithm.batch", size, least),
        *sampled_by(batches, _REDRAWN, "K records drawn anew"),
    )


def _experiments_sigma(claim: Budget, clip: float, count: int, log: float) -> float:
    """sqrt(8 L^2 count log / (n^2 eps^2))."""
    return clip * math.sqrt(8 * count * log) / (claim.n * claim.epsilon)


_NOISY = "noisy MB-SGD (Theorems 34, 104, 140)"


def noisy_minibatch(claim: Budget, clip: float, rounds: int, batch: Batch, *, title: str = _NOISY) -> Theorem:
    """Theorems 34, 104 and 140, see the module."""
    sigma, size = math.sqrt(variance(clip, rounds, rounds, claim)), batch.size(claim.n)
    least = smallest_batch(claim, rounds)
    checks = (
        theorem.ADVANCED_COMPOSITION.check(claim),
        at_least("K >= eps n / (4 sqrt(2 R ln(2/delta)))", "algorithm.batch", size, least),
        *sampled_by([batch], _REDRAWN, "K records drawn anew"),
    )
    return Theorem(title, claim, (NoisyMean(batch, rounds, sigma, clip, claim.n),), checks)


accelerated_erm = partial(noisy_minibatch, title="accelerated MB-SGD, empirical risk (Theorems 37, 129, 131)")
"""Sigma and conditions are exactly those of Theorem 34."""


def experiments(claim: Budget, clip: float, rounds: int, batch: Batch) -> Theorem:
    """The formula of the thesis's convex experiments (3.2.5): sigma^2 = 8 L^2 R ln(1/delta) / (n^2 eps^2).

    With K = n sqrt(eps) / (2 sqrt R), taken from a theorem on Poisson sampling under add-or-remove whose
    constants are not stated; at C = L it does not keep its claim under replace-one.
    """
    sigma = _experiments_sigma(claim, clip, rounds, math.log(1 / claim.delta))
    releases = (NoisyMean(batch, rounds, sigma, clip, claim.n),)
    checks = _experiments_batches(claim, rounds, batch)
    return Theorem("the experiments' formula (3.2.5)", claim, releases, checks)


def local_sgd(claim: Budget, clip: float, rounds: int, batch: Batch, local_steps: int) -> Theorem:
    """B.1.10: the experiments' formula with R K gradients, each on one record; without proof or range.

    K stands for `local_steps` here, the steps of a round.
    """
    count, size = rounds * local_steps, batch.size(claim.n)
    sigma = _experiments_sigma(claim, clip, count, math.log(1 / claim.delta))
    checks = (
        at_most("one record a local step", "algorithm.batch", size, 1),
        *sampled_by([batch], _REDRAWN, "records drawn anew"),
    )
    return Theorem("local SGD (B.1.10)", claim, (NoisyMean(batch, count, sigma, clip, claim.n),), checks)


def accelerated_one_pass(claim: Budget, clip: float, rounds: int, batch: Batch) -> Theorem:
    """Theorems 36 and 124: sigma^2 = 32 L^2 ln(1.25/delta) / (eps^2 K^2), eps <= 8 ln(1/delta), R = n/K.

    Batches are disjoint: each record is used once, and the run costs what one release costs.
    """
    sigma = math.sqrt(one_pass_variance(clip, claim, batch))
    checks = (theorem.ONE_GAUSSIAN.check(claim), *sampled_by([batch], ("fresh",), "disjoint batches"))
    title = "accelerated MB-SGD, one pass (Theorems 36, 124)"
    return Theorem(title, claim, (NoisyMean(batch, rounds, sigma, clip, claim.n),), checks)


def prox_sgd(claim: Budget, clip: float, rounds: int, batch: Batch, kappa: float | None = None) -> Theorem:
    """Theorems 40, 144: sigma^2 = 8 L^2 ln(1/delta) / (eps^2 K^2), eps <= min(8 ln(1/delta), 15), n >= kappa.

    Batches are disjoint; kappa is None where it is unknown and not checked. Erratum: this is half of what
    Proposition 8, which the proof cites, requires, and that proposition needs eps <= 2 ln(1/delta); the exact
    epsilon exceeds the claim from about 8 on.
    """
    size = batch.size(claim.n)
    sigma = math.sqrt(8 * clip**2 * math.log(1 / claim.delta) / (claim.epsilon * size) ** 2)
    checks = (
        theorem.PROX_SGD.check(claim),
        delta_below_half(claim.delta),
        *sampled_by([batch], ("fresh",), "disjoint batches"),
        *(() if kappa is None else (at_least("n >= kappa", "partition", claim.n, kappa),)),
    )
    releases = (NoisyMean(batch, rounds, sigma, clip, claim.n),)
    return Theorem("prox-SGD (Theorems 40, 144)", claim, releases, checks)


def prox_svrg(
    claim: Budget,
    clip: float,
    difference_clip: float,
    epochs: int,
    inner_steps: int,
    batch: Batch,
    restarts: int = 1,
    active: float = 1,
) -> Theorem:
    """Theorems 42, 148. Two noises: on the full gradient of each epoch, on each step's difference; R = E Q,
    E epochs of Q inner steps, with S restarts and M active silos in a round.

        sigma_1^2 = 256 L^2 S E ln(2/delta) ln(5 E/delta) / (eps^2 n^2),
        sigma_2^2 = 1024 L^2 S R ln(2/delta) ln(2.5 R/delta) / (eps^2 n^2),
        eps <= min(2 ln(2/delta), 15),   K >= eps n / (4 sqrt(2 S R ln(2/delta))),   K >= (n^2/M)^(1/3).

    The last condition is what the theorem's minimum of M amounts to. Errata: the proof derives the
    sensitivity 4 L / K of a difference and inserts the constant that belongs to 2 L / K, and has
    ln(5 R / delta) where the statement, which counts here, has ln(2.5 R / delta). Differences are clipped at
    their own bound, so sigma_2 is divided by the sensitivity that it really meets.
    """
    steps, size = epochs * inner_steps, batch.size(claim.n)
    first = math.sqrt(variance(clip, restarts * epochs, epochs, claim, factor=5))
    second = 2 * math.sqrt(variance(clip, restarts * steps, steps, claim))
    releases = (
        NoisyMean(FULL, restarts * epochs, first, clip, claim.n),
        NoisyMean(batch, restarts * steps, second, difference_clip, claim.n),
    )
    least, useful = smallest_batch(claim, restarts * steps), (claim.n**2 / active) ** (1 / 3)
    checks = (
        theorem.RESTARTS.check(claim),
        at_least("K >= eps n / (4 sqrt(2 S R ln(2/delta)))", "algorithm.batch", size, least),
        at_least("K >= (n^2 / M)^(1/3)", "algorithm.batch", size, useful),
        *sampled_by([batch], _REDRAWN, "K records drawn anew"),
    )
    return Theorem("prox-PL-SVRG (Theorems 42, 148)", claim, releases, checks)


def prox_spider(
    claim: Budget,
    clip: float,
    rounds: int,
    period: int,
    batch: Batch = FULL,
    difference_batch: Batch = FULL,
    smoothness: float | None = None,
    difference_clip: float | None = None,
    *,
    phases: float | None = None,
    experiments: bool = False,
) -> Theorem:
    """Theorems 44, 149. Noise on gradients, and on differences min(sigma_2 |w - w_previous|, hat sigma_2).

        sigma_1^2 = 16 L^2 ln(1/delta) max(R/q, 1) / (eps^2 n^2),
        sigma_2^2 = 16 beta^2 R ln(1/delta) / (eps^2 n^2)       where beta is known,
        hat sigma_2^2 = 64 L^2 R ln(1/delta) / (eps^2 n^2),     eps <= 2 ln(1/delta), K = n.

    Erratum: gradients alone and differences alone each spend the whole zCDP budget eps^2 / (8 ln(1/delta)),
    so the run spends it almost twice; the exact epsilon exceeds the claim from about 8 on.

    The period is q, the smoothness beta, or None where only clipping bounds a difference; with it, noise and
    bound of a difference are per unit of |w - w_previous|. By default max(R/q, 1) gradients share a budget.

    The `experiments` of B.2.4 have this noise on K = n sqrt(eps) / (2 sqrt R) records, for which nothing is
    proven. There beta is unknown, so that differences are clipped at 2 L and have hat sigma_2.
    """
    fresh, n = math.ceil(rounds / period), claim.n
    shared = max(rounds / period, 1.0) if phases is None else phases
    unit = 4 * math.sqrt(math.log(1 / claim.delta)) / (claim.epsilon * n)
    first = unit * clip * math.sqrt(shared)
    if smoothness is not None:
        bound, second = smoothness, unit * smoothness * math.sqrt(rounds)
    else:
        bound = 2 * clip if difference_clip is None else difference_clip
        second = 2 * unit * clip * math.sqrt(rounds)
    changes = NoisyMean(difference_batch, rounds - fresh, second, bound, n)
    releases = (NoisyMean(batch, fresh, first, clip, n), changes)
    if experiments:
        checks = _experiments_batches(claim, rounds, batch, difference_batch)
        return Theorem("prox-SPIDER, the experiments' (Algorithm 4, B.2.4)", claim, releases, checks)
    checks = (theorem.SPIDER.check(claim), *sampled_by([batch, difference_batch], ("full",), "K = n"))
    return Theorem("prox-SPIDER (Theorems 44, 149)", claim, releases, checks)


spider_experiments = partial(prox_spider, experiments=True)


def alternate_spider(
    claim: Budget,
    clip: float,
    rounds: int,
    batch: Batch,
    difference_batch: Batch,
    difference_clip: float | None = None,
) -> Theorem:
    """Algorithm 25 with the noise of the experiments of B.2.4, stated without proof:

    s_1^2 = 32 L^2 R ln(2/delta) / (n^2 eps^2) on differences (odd rounds),
    s_2^2 = 8 L^2 R ln(2/delta) / (n^2 eps^2) on gradients (even rounds),
    K = n sqrt(eps) / (2 sqrt R).
    """
    fresh, n = (rounds + 1) // 2, claim.n
    first = _experiments_sigma(claim, clip, rounds, math.log(2 / claim.delta))
    bound = 2 * clip if difference_clip is None else difference_clip
    changes = NoisyMean(difference_batch, rounds - fresh, 2 * first, bound, n)
    releases = (NoisyMean(batch, fresh, first, clip, n), changes)
    checks = _experiments_batches(claim, rounds, batch, difference_batch)
    return Theorem("alternate SPIDER (Algorithm 25, B.2.4)", claim, releases, checks)
