"""Which of its n records a silo uses in one release.

`Batch` is a sealed union: every member has its accountant in `fedsim.privacy`, so no sampler
without a price can be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, get_args

from fedsim.common.choice import Choice, Setting, Shorthand
from fedsim.common.errors import InputError, Refused

Fraction = Annotated[float, Setting("Fraction")]
Place = Annotated[float, Setting("Place")]


def _whole(share: float, n: int) -> int:
    """floor(share n); the tolerance keeps 0.1 * 30 at 3."""
    return math.floor(share * n + 1e-9)


@dataclass(frozen=True, slots=True)
class Full:
    """Every record, every time.

    K = n in every release.
    """

    sampler: ClassVar[str] = "full"
    random: ClassVar[bool] = False  # whether every ask draws its own

    def size(self, n: int) -> int:
        """K: the number of records in a batch, which the clipped sum is divided by."""
        return n


@dataclass(frozen=True, slots=True)
class _FractionSampler:
    random: ClassVar[bool] = True
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
    random: ClassVar[bool] = False

    def size(self, n: int) -> int:
        """K = floor(fraction n), at least one."""
        return max(1, _whole(self.fraction, n))


@dataclass(frozen=True, slots=True)
class Part:
    """The records between two places of the silo's secret order, as often as it is asked for.

    K = floor(stop n) - floor(start n) records. Two parts of a plan are equal or have no record in common, and
    no plan has both parts and fresh batches: then a record is in one part only.
    """

    sampler: ClassVar[str] = "part"
    random: ClassVar[bool] = False
    start: Place
    stop: Place

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= 1:
            hint = f"above start, which is {self.start:g} and at least 0, and at most 1"
            raise InputError("stop", self.stop, hint)

    def bounds(self, n: int) -> tuple[int, int]:
        """Where it begins and ends among n units."""
        return _whole(self.start, n), _whole(self.stop, n)

    def size(self, n: int) -> int:
        """K; Refused where the silo is too small for it."""
        start, stop = self.bounds(n)
        if start == stop:
            raise Refused(f"the part from {self.start:g} to {self.stop:g} holds none of the silo's {n} units")
        return stop - start


_Any = Full | Subsample | WithReplacement | Poisson | Fresh | Part
KINDS = get_args(_Any)
Batch = Annotated[_Any, Choice("sampler"), Shorthand("sampler")]
FULL = Full()


def check_parts(batches: Iterable[Batch], n: int) -> None:
    """Refuse parts that overlap, hold none of n units, or stand beside fresh batches: a record may then be
    in several, where the accountant counts one.
    """
    known = set(batches)
    parts = sorted((b for b in known if isinstance(b, Part)), key=lambda part: (part.start, part.stop))
    if parts and any(isinstance(batch, Fresh) for batch in known):
        raise Refused("the plan has fresh batches and parts, which may share units; use one of the two")
    for part in parts:
        part.size(n)
    for one, other in pairwise(parts):
        if other.start < one.stop:
            both = f"from {one.start:g} to {one.stop:g} and from {other.start:g} to {other.stop:g}"
            raise Refused(f"the plan's parts {both} overlap; two parts are equal, or disjoint")
