"""How theorems choose numbers: for their own noise, or for the noise that a plan will really have.

With `calibration: theorem` the noise is the theorem's sigma, and so are the rounds and steps that it states
for it. Where a theorem only asks for a least K, noisy MB-SGD takes that K (a record a step is enough for its
R), the others the one that their R is stated for. Silos that differ: Theorem 140 (`fedsim.theory.symbols`).

`calibration: accountant` adds many times less. Then V, the root mean squared error of a round's mean
gradient, is that of the plan that will run, each silo's noise being calibrated to it
(`fedsim.theory.averaged_noise`), and R solves the theorem's own equation with it: where the error of
optimisation is no more than that of noise. Every record is in every batch unless the theorem draws batches:
that has the least V, and what proofs by amplification ask of K has nothing to say here. Numbers that the
scenario gives (batch, clip, rounds) are part of the plan that V is computed for.

Constants that the thesis leaves open are one. With the accountant more budget never has a larger `excess` (or
`squared gradient`): for every R a larger budget has a smaller V, and the excess is twice the larger one of
two errors at an R where that is least, or at the smallest one where the first is below the second, which then
does not grow with R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.protocol.batch import FULL, Batch, Fresh
from fedsim.protocol.limits import LIMITS
from fedsim.theory.averaged_noise import Kind, Noise
from fedsim.theory.gradient_noise import AcceleratedOnePass, variance
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Derived

MOST_ROUNDS = LIMITS.max_rounds
"""As many rounds as a silo admits."""

Errors = Callable[[int], tuple[float, float]]
"""R to two errors: of optimisation, which falls with R, and of noise."""


@dataclass(frozen=True)
class Case:
    """A plan that is still to be chosen.

    Args:
        s: the theorems' symbols.
        clip: bound on a record's gradient: the scenario's, or L.
        batch: which records, where the scenario says so; with the theorem's own noise, whether in one pass.
        given: {field of the algorithm: number} that the scenario says; empty for the theorem's own noise.
        noise: of a round's mean, calibrated to the plan; None: the theorem's own.
    """

    s: Symbols
    clip: float
    batch: Batch | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    noise: Noise | None = None

    @property
    def one_pass(self) -> bool:
        """Whether the scenario asks for disjoint batches."""
        return isinstance(self.batch, Fresh)

    @property
    def rounds(self) -> int | None:
        """R, where the scenario says it."""
        return self.given.get("num_rounds")

    def drawn(self, R: int = 1, default: Batch = FULL) -> Batch:
        """The batch of a gradient; in one pass of the theorem's own noise one of R disjoint ones."""
        return Fresh(1 / R) if self.noise is None and self.one_pass else self.batch or default

    def candidates(self) -> Sequence[int]:
        """Numbers of disjoint batches to choose from: the given one, or as many as a given batch leaves."""
        if self.rounds is not None:
            return [self.rounds]
        if self.batch is not None:
            return [max(1, int(self.s.n // self.batch.size(self.s.n)))]
        return _disjoint(self.s.n)

    def private(self, batch: Batch, R: int) -> float:
        """Mean squared noise of a round's mean gradient in a plan of R such rounds."""
        if self.noise is not None:
            kind = Kind(batch, R)
            return self.s.d * self.noise.variance(self.clip, kind, [kind])
        (L,) = self.s.need("the theorem's noise", "L")
        if isinstance(batch, Fresh):
            return self.s.d * self.s.spread(lambda silo: AcceleratedOnePass(silo, L, R, batch).variance())
        return self.s.d * self.s.spread(lambda silo: variance(L, R, R, silo))

    def sampling(self, batch: Batch) -> float:
        """Mean squared error of a round's mean gradient that records and silos make by being drawn.

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
        """What the theorem chose.

        Args:
            theorem: its name and number.
            values: {field of the algorithm: value}.
            predicted: V and a bound, which are told of the noise that is really added.
            notes: of the theorem's own noise.
        """
        if self.noise is None:
            return Derived(theorem, values, notes or {})
        return Derived(theorem, values, predicted=predicted())


def larger(errors: tuple[float, float]) -> float:
    """Twice the larger error, an upper bound of their sum that falls where every error of every R falls."""
    return 2 * max(errors)


def rounded(value: float) -> int:
    """At least so many rounds, and at least one."""
    return max(1, math.ceil(value))


def log(value: float) -> float:
    """A logarithm that the theorems take of a large number; at least ln 2, so that R stays positive."""
    return math.log(max(2.0, value))


def fresh(R: int) -> dict[str, Any]:
    """R disjoint batches, as a scenario says it."""
    return {"sampler": "fresh", "fraction": 1 / R}


def subsample(fraction: float) -> Any:
    """A share of the records drawn anew each time, as a scenario says it."""
    return "full" if fraction >= 1 else {"sampler": "subsample", "fraction": fraction}


def smallest(holds: Callable[[int], bool], least: int = 1) -> int:
    """Return the smallest R >= least at which a condition holds that stays true from its first R on.

    At most `MOST_ROUNDS`, whether it holds there or not.

    >>> smallest(lambda R: R * R >= 50)
    8
    """
    low, high = least - 1, least
    while not holds(high):
        if high >= MOST_ROUNDS:
            return MOST_ROUNDS
        low, high = high, min(2 * high, MOST_ROUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def balanced(errors: Errors) -> int:
    """Return the R at which the larger error is least, where the second one never falls.

    >>> balanced(lambda R: (100 / R, R))
    10
    """
    R = smallest(lambda R: errors(R)[0] <= errors(R)[1])
    return best((max(1, R - 1), R), errors)


def best(candidates: Iterable[int], errors: Errors) -> int:
    """Return the candidate whose larger error is least, the smallest one of equals."""
    return min(candidates, key=lambda R: (max(errors(R)), R))


def _disjoint(n: int) -> list[int]:
    """How many disjoint batches of K records n have, for every K: no other number of them is worth trying."""
    root = math.isqrt(n)
    return sorted({n // K for K in range(1, root + 1)} | set(range(1, root + 1)))
