"""A plan that is still to be chosen: the setting, the silos' calibration, and what the scenario gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.protocol.batch import FULL, Batch, Fresh
from fedsim.scenario.derived import Derived
from fedsim.theory.calibrated import Calibrated, Kind
from fedsim.theory.search import disjoint
from fedsim.theory.setting import Setting


@dataclass(frozen=True)
class Case:
    """What a theorem chooses the rest for.

    Args:
        s: the theorems' symbols.
        noise: each silo's own calibration.
        clip: bound on a record's gradient: the scenario's, or L.
        batch: which records, where the scenario says so.
        given: {field of the algorithm: number} that the scenario says.
    """

    s: Setting
    noise: Calibrated
    clip: float
    batch: Batch | None
    given: Mapping[str, Any]

    @property
    def one_pass(self) -> bool:
        """Whether the scenario asks for disjoint batches."""
        return isinstance(self.batch, Fresh)

    @property
    def rounds(self) -> int | None:
        """R, where the scenario says it."""
        return self.given.get("num_rounds")

    def drawn(self, default: Batch = FULL) -> Batch:
        """The batch of a gradient."""
        return self.batch or default

    def candidates(self) -> Sequence[int]:
        """Numbers of disjoint batches to choose from: the given one, or as many as a given batch leaves."""
        if self.rounds is not None:
            return [self.rounds]
        if self.batch is not None:
            return [max(1, int(self.s.n // self.batch.size(self.s.n)))]
        return disjoint(self.s.n)

    def private(self, batch: Batch, R: int) -> float:
        """Mean squared noise of a round's mean gradient in a plan of R such rounds."""
        kind = Kind(batch, R)
        return self.s.d * self.noise.variance(self.clip, kind, [kind])

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

    def derived(self, theorem: str, values: dict[str, Any], V: float, **bound: float) -> Derived:
        """What the theorem chose; a difference is clipped at twice what a gradient is."""
        return Derived(theorem, values | {"clip_norm": self.clip}, predicted={"V": V, **bound})


def fresh(R: int) -> dict[str, Any]:
    """The section of R disjoint batches."""
    return {"sampler": "fresh", "fraction": 1 / R}


def larger(errors: tuple[float, float]) -> float:
    """Twice the larger error, an upper bound of their sum that falls where every error of every R falls."""
    return 2 * max(errors)
