"""Which of its n records a silo uses in one release.

`Batch` is a sealed union: every member has its own accountant in `fedsim.privacy`, so a sampler
that nobody can price cannot be asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Full:
    """Every record in every release (K = n)."""

    sampler: ClassVar[str] = "full"

    def size(self, n: int) -> int:
        """K: the number of records in a batch, which the clipped sum is divided by."""
        return n


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(f"batch.fraction: {fraction} is not in (0, 1]")


@dataclass(frozen=True, slots=True)
class Subsample:
    """A uniform K-subset without replacement, drawn anew for each `ask`; K = round(fraction n) >= 1."""

    fraction: float
    sampler: ClassVar[str] = "subsample"

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def size(self, n: int) -> int:
        """K = round(fraction n), at least one record."""
        return max(1, round(self.fraction * n))


@dataclass(frozen=True, slots=True)
class WithReplacement:
    """K independent draws among the n records, anew for each `ask`; K = round(fraction n) >= 1.

    A record drawn j times counts j times in the sum, each time clipped, so that replacing it moves the
    sum by up to 2 C j. The published algorithms sample so; `Subsample` costs less privacy.
    """

    fraction: float
    sampler: ClassVar[str] = "with_replacement"

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def size(self, n: int) -> int:
        """K = round(fraction n), at least one draw."""
        return max(1, round(self.fraction * n))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each record on its own with probability `fraction`; divided by the public fraction n."""

    fraction: float
    sampler: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def size(self, n: int) -> float:
        """The expected size fraction n: public, where the size drawn is not."""
        return self.fraction * n


@dataclass(frozen=True, slots=True)
class Fresh:
    """Disjoint batches of K = floor(fraction n) >= 1 records: none is used twice in a run."""

    fraction: float
    sampler: ClassVar[str] = "fresh"

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def size(self, n: int) -> int:
        """K = floor(fraction n), at least one; the tolerance keeps 0.1 * 30 at 3."""
        return max(1, math.floor(self.fraction * n + 1e-9))


Batch = Full | Subsample | WithReplacement | Poisson | Fresh
FULL = Full()
