"""The interface of mechanisms of secure aggregation, and how silos share noise on a grid."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Protocol

from fedsim.common.errors import InputError
from fedsim.privacy.mechanism import FLOATING_POINT, Mechanism
from fedsim.protocol.facts import Told
from fedsim.protocol.plan import Census
from fedsim.protocol.statistics import Extent


class SumMechanism(Mechanism, Protocol):
    """A mechanism of secure aggregation (`sums_only`): silos make contributions, and only their sum is read.

    `perturb` turns weighted sums into contributions, in place; its `clip` is the query's, a number, and its z
    the multiplier that is common to all silos. A silo whose terms have norm <= r clip is priced at a larger
    multiplier, z_i.
    """

    sums_only: ClassVar[bool] = True
    gradients_alone: ClassVar[bool] = False  # whether it has a price for those of a unit in one silo alone
    fields: ClassVar[dict[str, bool]] = {"min_silos": False, "honest_fraction": False}
    single_records: bool = False  # whether a message is claimed to hide among others: each is of one record
    # "shares" (two aggregators add up) or "messages" (a shuffler passes whole ones on)
    transport: ClassVar[Literal["shares", "messages"]] = "shares"
    guarantee_colluding: ClassVar[str]  # what holds if server and other party collude, in one sentence

    @property
    def facts(self) -> dict[str, Told]:
        """See `Mechanism`."""
        return super().facts | {"shuffled messages": self.gradients_alone and self.name}

    def together(self, census: Census, silos: int) -> Census:
        """See `Mechanism`: under one noise a term of every silo moves each sum (group privacy), so that a
        release has so many times its mu; not for batches drawn at random.
        """
        return tuple((replace(release, weight=release.weight * silos), count) for release, count in census)

    def step(self, clip: float) -> float:
        """The value of one unit of a contribution, in the unit of the sums."""

    def exactly(self, most: int) -> tuple[SumMechanism, tuple[str, ...]]:
        """It, with exact noise on answers of at most so many numbers; and what a reader must know of it."""
        return self, (FLOATING_POINT,)

    def priced_for(self, extent: Extent) -> SumMechanism:
        """It, for the answers of a plan."""
        return self

    def reach(self, r: float) -> float:
        """The most that a record moves a contribution by, over the clip, if terms are <= r clip."""

    def effective(self, z: float, r: float) -> float:
        """z_i where the common multiplier is z."""

    def common(self, z_i: float, r: float) -> float:
        """The inverse of `effective`."""

    def colluding(self, z_i: float) -> float:
        """The silo's multiplier where only its share of the noise counts; 0 for none."""

    def colluding_epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """`epsilons` of the same cases if the two parties collude; infinite without a guarantee."""

    def variance(self, silos: int) -> float:
        """Of the noise in a sum of so many silos, over that of the common multiplier."""
        return float(silos)

    def surplus(self, step: float, silos: int) -> float:
        """The same of its noise in steps of so many deviations, over what so many silos are to add up to."""
        return 1.0

    def aggregators_noise(self, z: float, size: int, spread: float) -> float:
        """Scale in steps of the discrete Gaussian noise that each aggregator adds to its sum; 0 for none.

        `z` is the common multiplier times the query's noise ratio; the answer has `size` numbers and its
        statistic this spread.
        """
        return 0.0


def check_sharers(pool_min: int, honest_fraction: float) -> None:
    """Raise an InputError for a number of silos, or a share of honest ones, that no noise is shared by."""
    if not pool_min >= 1:
        raise InputError("pool_min", pool_min, "at least one silo")
    if not 0 < honest_fraction <= 1:
        raise InputError("honest_fraction", honest_fraction, "in (0, 1]")


def honest_silos(pool_min: int, honest_fraction: float) -> int:
    """ceil(gamma M_min), at least the silo itself: how many of a sum add their share and keep it secret.

    A product that floating point has just above a whole number is that number, 0.07 of 100 silos is 7.

    >>> honest_silos(100, 0.07), honest_silos(100, 0.071), honest_silos(2, 0.1)
    (7, 8, 1)
    """
    return max(1, math.ceil(honest_fraction * pool_min * (1 - 2**-40)))


class SharedNoise(ABC):
    """Noise on a grid of which every silo adds a share: silos' multipliers and shares, from D(r)."""

    pool_min: int  # M_min, how many silos a sum has at least
    honest_fraction: float  # gamma in (0, 1]: share of M_min that adds its share and keeps it secret
    least: float  # silos whose terms have a smaller share r of the clip are priced as if they had this one

    def __post_init__(self) -> None:
        check_sharers(self.pool_min, self.honest_fraction)

    @abstractmethod
    def sensitivity(self, r: float = 1.0) -> float:
        """D(r), in steps: the sensitivity of a silo whose terms have norm <= r clip."""

    @property
    def sharers(self) -> int:
        """H, the number that the variance is divided by."""
        return honest_silos(self.pool_min, self.honest_fraction)

    def effective(self, z: float, r: float) -> float:
        """z_i of a silo whose terms have norm <= r clip, r in [0, 1], where the common multiplier is z."""
        return z * self.sensitivity() / self.sensitivity(max(r, self.least))

    def common(self, z_i: float, r: float) -> float:
        """The common multiplier at which such a silo has z_i: the inverse of `effective`."""
        return z_i * self.sensitivity(max(r, self.least)) / self.sensitivity()

    def colluding(self, z_i: float) -> float:
        """The multiplier of a silo that only its share of the noise protects."""
        return z_i / math.sqrt(self.sharers)

    def variance(self, silos: int) -> float:
        """See `SumMechanism`."""
        return silos / self.sharers
