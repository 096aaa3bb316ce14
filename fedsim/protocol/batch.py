"""Which of its n records a silo uses in one release.

`Batch` is a sealed union: every member has its accountant in `fedsim.privacy`, so no sampler
without a price can be asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedsim.common.section import Choice, Shorthand

Fraction = Annotated[float, Field(ge=1e-9, le=1, description="share of the silo's records in a batch")]


@dataclass(frozen=True, slots=True)
class Full:
    """Every record, every time.

    K = n in every release.
    """

    sampler: ClassVar[str] = "full"

    def size(self, n: int) -> int:
        """K: the number of records in a batch, which the clipped sum is divided by."""
        return n


@dataclass(frozen=True, slots=True)
class _FractionSampler:
    """A sampler of a share of the records."""

    fraction: Fraction

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"batch.fraction: {self.fraction} is not in (0, 1]")


@dataclass(frozen=True, slots=True)
class Subsample(_FractionSampler):
    """A uniform subset without replacement, drawn anew each time.

    K = round(fraction n) >= 1 records, anew for each `ask`.
    """

    sampler: ClassVar[str] = "subsample"

    def size(self, n: int) -> int:
        """K = round(fraction n), at least one record."""
        return max(1, round(self.fraction * n))


@dataclass(frozen=True, slots=True)
class WithReplacement(_FractionSampler):
    """Independent draws with replacement, as published; a subset costs less privacy.

    K = round(fraction n) >= 1 draws among the n records, anew for each `ask`. A record drawn j times counts
    j times in the sum, each time clipped, so that replacing it moves the sum by up to 2 C j.
    """

    sampler: ClassVar[str] = "with_replacement"

    def size(self, n: int) -> int:
        """K = round(fraction n), at least one draw."""
        return max(1, round(self.fraction * n))


@dataclass(frozen=True, slots=True)
class Poisson(_FractionSampler):
    """Each record on its own with the same probability.

    That is `fraction`; the sum is divided by the public fraction n.
    """

    sampler: ClassVar[str] = "poisson"

    def size(self, n: int) -> float:
        """The expected size fraction n: public, where the size drawn is not."""
        return self.fraction * n


@dataclass(frozen=True, slots=True)
class Fresh(_FractionSampler):
    """Disjoint batches: no record is used twice.

    K = floor(fraction n) >= 1 records; none is used twice in a run.
    """

    sampler: ClassVar[str] = "fresh"

    def size(self, n: int) -> int:
        """K = floor(fraction n), at least one; the tolerance keeps 0.1 * 30 at 3."""
        return max(1, math.floor(self.fraction * n + 1e-9))


Batch = Annotated[
    Full | Subsample | WithReplacement | Poisson | Fresh, Choice("sampler"), Shorthand("sampler")
]
FULL = Full()
