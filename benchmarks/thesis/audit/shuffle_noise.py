"""What the thesis's theorems in the shuffle model (SDP) ask for: A. Lowy, thesis (USC 2023), 3.2.4 and B.

SDP: what the server sees of a run, all silos' messages without their senders, is (eps, delta)-DP for
replacing one record of one silo. Theorem 38 has silos add Gaussian noise to single gradients and shuffles
them; the others ask P_vec (Lemma 136) for the sum over silos, see `sum_oracle`. eps and delta
are of the run, and of every record's, so silos are alike. fedsim runs these algorithms with sums over silos
that its accountant calibrates (`parameters` and `bounds` are the theorems'), and adds none of this noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.thesis.audit.sum_oracle import Call, OracleTheorem
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Batch
from fedsim.theory.theorem import (
    ORACLE,
    PROX_SGD,
    RESTARTS,
    SHUFFLED,
    SPIDER_SDP,
    Check,
    NoisyMean,
    at_least,
    at_most,
    delta_below_half,
    sampled_by,
)


@dataclass(frozen=True)
class NoisyGradients(ABC):
    """A theorem whose plan is noisy mean gradients alone, one a round.

    Args:
        claim: n_i, eps_i, delta_i.
        clip: L.
        rounds: R.
        batch: how K records are drawn.
    """

    title: ClassVar[str]
    claim: Budget
    clip: float
    rounds: int
    batch: Batch

    @property
    @abstractmethod
    def sigma(self) -> float:
        """Standard deviation per coordinate on a silo's mean gradient."""

    @property
    def releases(self) -> tuple[NoisyMean, ...]:
        """Noisy mean gradients of sensitivity 2 L / K."""
        return (NoisyMean(self.batch, self.rounds, self.sigma, self.clip, self.claim.n),)

    @property
    @abstractmethod
    def checks(self) -> tuple[Check, ...]:
        """Every side condition that can be checked."""


@dataclass(frozen=True)
class ShuffledMessages(NoisyGradients):
    """Theorems 38 and 135: M silos each send one record's gradient and noise, R times; constant C = 1.

        sigma^2 = C L^2 R M ln(R M^2/(N delta)) ln(R/delta) ln(1/delta) / (n N eps)^2,
        eps <= ln(2/delta),   M >= 16 ln(18 R M^2/(N delta)),   R >= (n N eps)^2 / M.

    C is nowhere said; the last condition is what the proof's eps_0 <= 1, the epsilon of one message, comes
    to. As a theorem it is what silo i's own messages cost: what holds if the shuffler is not trusted.

    Args:
        silos: N.
        active: M.
    """

    title: ClassVar[str] = "shuffled MB-SGD (Theorems 38, 135)"
    silos: int
    active: int

    @property
    def sigma(self) -> float:
        """Standard deviation per coordinate of one message."""
        R, M, N, delta = self.rounds, self.active, self.silos, self.claim.delta
        logs = math.log(R * M**2 / (N * delta)) * math.log(R / delta) * math.log(1 / delta)
        return self.clip * math.sqrt(R * M * logs) / (self.claim.n * N * self.claim.epsilon)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Epsilon range, M minimum, R minimum, one record a message."""
        claim, M, N = self.claim, self.active, self.silos
        shuffled = 16 * math.log(18 * self.rounds * M**2 / (N * claim.delta))
        rounds = (claim.n * N * claim.epsilon) ** 2 / M
        return (
            SHUFFLED.check(claim),
            at_least("M >= 16 ln(18 R M^2/(N delta))", "participation", M, shuffled),
            at_least("R >= (n N eps)^2 / M", "algorithm.num_rounds", self.rounds, rounds),
            at_most("K = 1", "algorithm.batch", self.batch.size(claim.n), 1),
        )


@dataclass(frozen=True)
class SummedMessages(ShuffledMessages):
    """The same messages seen through their sum alone, which shows less than the messages do; for M = N."""

    @property
    def sigma(self) -> float:
        """Standard deviation per coordinate of the sum of M messages."""
        return super().sigma * math.sqrt(self.active)


@dataclass(frozen=True, slots=True)
class Published:
    """Parameters of the vector sum as published: steps g, bits b a user and coordinate, probability p."""

    steps: int
    bits: int
    probability: float

    def deviation(self, users: int) -> float:
        """Standard deviation of the sum's noise, in units of the clip: a step is 2 clip / g.

        The steps span the shifted range [0, 2 clip] (thesis, Algorithm 17 as corrected).
        """
        spread = math.sqrt(users * self.bits * self.probability * (1 - self.probability))
        return 2 * spread / self.steps


def published(users: int, dimension: int, epsilon: float, delta: float) -> Published:
    """Return what the existence proof of the vector sum names; hundreds of times the noise that is needed.

    Source: Cheu, Joseph, Mao and Peng, ICLR 2022 (arXiv 2106.09805), on which the thesis's Lemma 136 rests.
    """
    steps = math.ceil(max(2 * math.sqrt(users), dimension, 4))
    log = math.log(4 * (dimension**2 + 1) / delta)
    return Published(steps, math.ceil(24e4 * steps**2 * log**2 / (epsilon**2 * users)), 0.25)


@dataclass(frozen=True)
class VectorSum(NoisyGradients):
    """Lemma 136 (P_vec, Algorithms 16 and 17) with the constants of its source; one sum of K records a silo.

    The thesis says that (b, g, p) exist; `published` has what the source names. Here
    as Gaussian noise of the same variance.

    Args:
        silos: M = N.
        dimension: d.
    """

    title: ClassVar[str] = "SDP vector sum P_vec (Lemma 136, Algorithms 16, 17)"
    silos: int
    dimension: int

    @property
    def sigma(self) -> float:
        """Standard deviation per coordinate on the sum of the silos' means."""
        size = int(self.batch.size(self.claim.n))
        users = self.silos * size
        stated = published(users, self.dimension, self.claim.epsilon, self.claim.delta)
        return self.clip * stated.deviation(users) / size

    @property
    def checks(self) -> tuple[Check, ...]:
        """Range of the lemma."""
        return _range_of_oracle(self.claim)


@dataclass(frozen=True)
class SummedOnePass(OracleTheorem):
    """Theorems 39, 137: P_vec at (eps, delta) in R rounds on disjoint batches; eps <= 15, delta < 1/2.

    Errata: in K = (L/(beta D))^(2/5) n^(3/5) (sqrt d ln(d/delta) / (eps M))^(2/5) a ln(1/delta_0) of
    Theorem 36 is left over; the strongly convex bound has ln(1/delta) where V^2 has ln(d/delta)^2.

    Args:
        rounds: R.
        batch: K records of a silo in each round.
    """

    title: ClassVar[str] = "SDP accelerated, one pass (Theorems 39, 137)"
    rounds: int
    batch: Batch

    def calls(self) -> tuple[Call, ...]:
        """R gradients."""
        return (Call(self.claim.epsilon, self.claim.delta, self.rounds, self.batch, self.clip),)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Range of P_vec, disjoint batches."""
        return (*_range_of_oracle(self.claim), *_disjoint(self.batch))


@dataclass(frozen=True)
class SummedProxSGD(OracleTheorem):
    """Theorems 40, 144, SDP: P_vec at (N eps / (2 M), delta), disjoint batches, M >= N min(eps/2, 1).

    The proof multiplies by 2 M / N for the draw of M of N silos, which is right where N eps / (2 M) <= 1
    and where only the silos know which were drawn.

    Erratum: Algorithm 21 steps by g / beta under the prox of f1 / (2 beta); with g / (2 beta), as in its
    ISRL twin, Algorithm 20, the proof holds.

    Args:
        rounds: R.
        batch: K records of a silo in each round.
        secret: whether only the silos in S_r know it.
        kappa: condition number, None where it is unknown and not checked.
    """

    title: ClassVar[str] = "SDP prox-SGD (Theorems 40, 144)"
    rounds: int
    batch: Batch
    secret: bool = False
    kappa: float | None = None

    def calls(self) -> tuple[Call, ...]:
        """R gradients."""
        share = self.active / self.silos
        epsilon, delta = self.claim.epsilon / (2 * share), self.claim.delta
        return (Call(epsilon, delta, self.rounds, self.batch, self.clip, share if self.secret else 1.0),)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Range of epsilon, delta, M minimum, disjoint batches, n >= kappa where kappa is known."""
        claim, kappa = self.claim, self.kappa
        least = self.silos * min(claim.epsilon / 2, 1.0)
        return (
            PROX_SGD.check(claim),
            delta_below_half(claim.delta),
            at_least("M >= N min(eps/2, 1)", "participation", self.active, least),
            *_disjoint(self.batch),
            *(() if kappa is None else (at_least("n >= kappa", "partition", claim.n, kappa),)),
        )


@dataclass(frozen=True)
class SummedProxSVRG(OracleTheorem):
    """Theorems 42, 148, SDP (Algorithm 22): P_vec at eps' on E full gradients and E Q differences.

        eps' = eps n N / (8 M K sqrt(4 E Q ln(2/delta))),   delta' = delta / (2 E Q),
        norms L and 2 L,   eps <= min(2 ln(2/delta), 15).

    Errata: "n n" is printed for n N; the proof amplifies both kinds by 2 M K / (n N), but a full gradient
    has all n records, so its factor is 2 M / N at most; line 10 uses the next anchor before it exists.

    Args:
        epochs: E.
        inner_steps: Q.
        batch: K records of a silo in a difference.
    """

    title: ClassVar[str] = "SDP prox-SVRG (Theorems 42, 148, Algorithm 22)"
    epochs: int
    inner_steps: int
    batch: Batch

    def calls(self) -> tuple[Call, ...]:
        """E full gradients; E Q differences."""
        claim, steps = self.claim, self.epochs * self.inner_steps
        share = self.active * self.batch.size(claim.n) / (self.silos * claim.n)
        epsilon = claim.epsilon / (8 * share * math.sqrt(4 * steps * math.log(2 / claim.delta)))
        delta = claim.delta / (2 * steps)
        return (
            Call(epsilon, delta, self.epochs, FULL, self.clip),
            Call(epsilon, delta, steps, self.batch, 2 * self.clip),
        )

    @property
    def checks(self) -> tuple[Check, ...]:
        """Epsilon range, range of P_vec."""
        oracle = at_most("eps' <= 15", "algorithm.batch", self.calls()[0].epsilon, 15.0)
        return (RESTARTS.check(self.claim), oracle)


@dataclass(frozen=True)
class SummedRestarts(OracleTheorem):
    """Algorithm 23: S runs of Algorithm 22, each (eps / (2 sqrt(2 S)), delta / (2 S))-DP and no more known.

    Erratum: advanced composition needs eps / (2 sqrt(2 S ln(2/delta))); so does eps / S, the plain one.

    Args:
        restarts: S.
    """

    title: ClassVar[str] = "SDP prox-PL-SVRG, restarts (Theorems 42, 148, Algorithm 23)"
    restarts: int

    def calls(self) -> tuple[Call, ...]:
        """S whole runs, as if each were one answer of the oracle."""
        claim, S = self.claim, self.restarts
        return (Call(claim.epsilon / (2 * math.sqrt(2 * S)), claim.delta / (2 * S), S, FULL, self.clip),)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Epsilon range."""
        return (RESTARTS.check(self.claim),)


@dataclass(frozen=True)
class SummedSPIDER(OracleTheorem):
    """Theorems 45, 151 (Algorithm 24): P_vec for a gradient every q rounds, and for differences; K = n.

        gradients: eps N / (4 M sqrt(2 ln(1/delta))) min(1, sqrt(q/R)), delta q / (2 R),
        differences: eps N / (4 M sqrt(2 R ln(1/delta))), delta / (2 R),   eps <= ln(1/delta).

    Errata: max is printed for min, so that each of the R/q gradients spends what is for all of them; and
    "n n" for n N.

    Args:
        rounds: R.
        period: q.
        as_printed: with max.
    """

    title: ClassVar[str] = "SDP prox-SPIDER (Theorems 45, 151)"
    rounds: int
    period: int
    as_printed: bool = False

    def calls(self) -> tuple[Call, ...]:
        """Gradients every q rounds, differences in between."""
        claim, R, q = self.claim, self.rounds, self.period
        unit = claim.epsilon * self.silos / (4 * self.active * math.sqrt(2 * math.log(1 / claim.delta)))
        fresh, part = math.ceil(R / q), math.sqrt(q / R)
        factor = max(1.0, part) if self.as_printed else min(1.0, part)
        # No more than half of delta on gradients, whatever q is.
        return (
            Call(unit * factor, claim.delta / (2 * fresh), fresh, FULL, self.clip),
            Call(unit / math.sqrt(R), claim.delta / (2 * R), R - fresh, FULL, 2 * self.clip),
        )

    @property
    def checks(self) -> tuple[Check, ...]:
        """Epsilon range."""
        return (SPIDER_SDP.check(self.claim),)


def _range_of_oracle(claim: Budget) -> tuple[Check, ...]:
    """Lemma 136."""
    return (ORACLE.check(claim), delta_below_half(claim.delta))


def _disjoint(batch: Batch) -> tuple[Check, ...]:
    return sampled_by([batch], ("fresh",), "disjoint batches")
