"""How theorems choose numbers: for the noise that they state, or for noise that the accountant calibrates.

With `calibration: theorem` the noise is the theorem's sigma, and rounds and steps are those that the theorem
states for it. Noisy MB-SGD takes the smallest batch size K that its proof needs: one record a step is enough
for its R. The other theorems take the K that their R is stated for. Silos may differ: Theorem 140
(`fedsim.theory.symbols`).

With `calibration: accountant` the noise is many times smaller. V, the root mean squared error of a round's
mean gradient, is then computed for the plan that will run, with each silo's noise calibrated to that plan
(`fedsim.theory.averaged_noise`). R solves the theorem's equation with this V: it is the smallest R at which
the optimisation error is at most the error from noise. Batches are full unless the theorem draws them: this
has the least V, and the bounds on K that proofs by amplification need do not apply. Numbers that the scenario
gives (batch, clip, rounds) are part of the plan.

Constants that the thesis leaves open are set to one. With the accountant a larger budget never predicts a
larger `excess` (or `squared gradient`). For every R a larger budget has a smaller V. The excess is twice the
larger of two errors, at the R where that is least or at the smallest R where the first is below the second;
the second does not grow with R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.protocol.batch import FULL, Batch, Fresh
from fedsim.theory.averaged_noise import Kind, Noise
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Derived, smallest
from fedsim.theory.theorem_noise import one_pass_variance, variance

Errors = Callable[[int], tuple[float, float]]  # R to errors of optimisation, falling with R, and of noise


@dataclass(frozen=True)
class Case:
    """The input of a theorem's choice: symbols, the scenario's numbers, and the noise."""

    s: Symbols  # the theorems' symbols
    clip: float  # bound on a record's gradient: the scenario's, or L
    batch: Batch | None = None  # the scenario's; with the theorem's noise only whether it is `fresh` matters
    given: Mapping[str, Any] = field(default_factory=dict)  # the scenario's numbers, by field
    noise: Noise | None = None  # of a round's mean, calibrated to the plan; None: the theorem's

    @property
    def one_pass(self) -> bool:
        """Whether batches are disjoint, so that every record is used at most once."""
        return isinstance(self.batch, Fresh)

    @property
    def rounds(self) -> int | None:
        """R, if the scenario gives it."""
        return self.given.get("num_rounds")

    def drawn(self, R: int = 1, default: Batch = FULL) -> Batch:
        """The batch of a gradient; in one pass with the theorem's noise one of R disjoint batches."""
        return Fresh(1 / R) if self.noise is None and self.one_pass else self.batch or default

    def candidates(self) -> Sequence[int]:
        """Candidates for R in one pass: the given R, else floor(n / K) of a given batch, else every one."""
        if self.rounds is not None:
            return [self.rounds]
        if self.batch is not None:
            return [max(1, int(self.s.n // self.batch.size(self.s.n)))]
        # Other numbers of disjoint batches than floor(n / K) leave more records unused.
        n, root = self.s.n, math.isqrt(self.s.n)
        return sorted({n // K for K in range(1, root + 1)} | set(range(1, root + 1)))

    def private(self, batch: Batch, R: int) -> float:
        """Mean squared noise of a round's mean gradient in a plan of R such rounds."""
        if self.noise is not None:
            kind = Kind(batch, R)
            return self.s.d * self.noise.variance(self.clip, kind, [kind])
        (L,) = self.s.need("the theorem's noise", "L")
        if isinstance(batch, Fresh):
            return self.s.d * self.s.spread(lambda silo: one_pass_variance(L, silo, batch))
        return self.s.d * self.s.spread(lambda silo: variance(L, R, R, silo))

    def sampling(self, batch: Batch) -> float:
        """Mean squared error of a round's mean gradient from subsampling records and silos.

        Disjoint batches: phi^2 / (M K) + (N - M)/(N - 1) upsilon^2 / M (Lemma 128). Others: 4 L^2 / (M K)
        unless every record is there (Theorem 37).
        """
        s, K = self.s, batch.size(self.s.n)
        if isinstance(batch, Fresh):
            phi, upsilon = s.need("one pass (Lemma 128)", "phi", "upsilon")
            return phi**2 / (s.M * K) + s.between * upsilon**2 / s.M
        (L,) = s.need("a round's variance", "L")
        return 4 * L**2 / (s.M * K) if s.N * s.n > s.M * K else 0.0

    def squared(self, batch: Batch, R: int) -> float:
        """V^2: mean squared error of a round's mean gradient."""
        return self.sampling(batch) + self.private(batch, R)

    def derived(
        self,
        theorem: str,
        values: dict[str, Any],
        predicted: Callable[[], dict[str, float]],
        notes: dict[str, Any] | None = None,
    ) -> Derived:
        """The theorem's choice, {field of the algorithm: value}: with predictions (V and a bound) for
        calibrated noise, which alone computes them, or with notes, {symbol: value}, for the theorem's noise.
        """
        if self.noise is None:
            return Derived(theorem, values, notes or {})
        return Derived(theorem, values, predicted=predicted())


def larger(errors: tuple[float, float]) -> float:
    """Twice the larger error: an upper bound of the sum, monotone in both errors."""
    return 2 * max(errors)


def rounded(value: float) -> int:
    """The number of rounds, rounded up, at least 1."""
    return max(1, math.ceil(value))


def log(value: float) -> float:
    """ln(max(2, value)): the theorems take it of large numbers, and R must stay positive."""
    return math.log(max(2.0, value))


def fresh(R: int) -> dict[str, Any]:
    """R disjoint batches, as the `batch` field of a scenario."""
    return {"sampler": "fresh", "fraction": 1 / R}


def subsample(fraction: float) -> Any:
    """Subsampling of a fraction of the records, as the `batch` field of a scenario."""
    return "full" if fraction >= 1 else {"sampler": "subsample", "fraction": fraction}


def balanced(errors: Errors) -> int:
    """The R at which the larger error is least; the first error falls with R, the second never does.

    >>> balanced(lambda R: (100 / R, R))
    10
    """
    R = smallest(lambda R: errors(R)[0] <= errors(R)[1])
    return best((max(1, R - 1), R), errors)


def best(candidates: Iterable[int], errors: Errors) -> int:
    """The candidate whose larger error is least; the smallest of equals."""
    return min(candidates, key=lambda R: (max(errors(R)), R))
