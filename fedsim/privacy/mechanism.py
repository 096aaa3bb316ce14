"""The interface of mechanisms: noise, its price, and the guarantee that follows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from fedsim.common.errors import InputError
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.plan import Census

if TYPE_CHECKING:
    from torch import Tensor

    Noise = Callable[[], Tensor]


class Mechanism(Protocol):
    """Adds noise to a silo's answers and prices it; frozen and hashable.

    z is a silo's base noise multiplier: sigma over L2 sensitivity of a release of weight 1. A clipped sum
    has sensitivity 2 clip under replace-one. A class's first docstring line is what `fedsim list` shows.

    Attributes:
        name: the word in a scenario.
        private: whether anything is guaranteed; if not, every price is infinite and no budget can be kept.
        clips: whether records' terms are shortened to their clip.
        squares_add: whether an unsampled release of weight a costs what a Gaussian one of mu = a / z does, so
            that mu^2 adds over runs too; else only (epsilon, delta) of whole plans do.
        sums_only: secure aggregation: the server learns sums of answers and no single silo's answer.
        unit: what is replaced in a neighbouring data set.
        guarantee: what is guaranteed, in one sentence.
        notices: warnings that a report shows before any number.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    clips: ClassVar[bool] = True
    squares_add: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    unit: ClassVar[str] = "one record of one silo"
    guarantee: ClassVar[str]
    notices: ClassVar[tuple[str, ...]] = ()

    def __hash__(self) -> int:
        return super().__hash__()

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw noise of scale 1 into each row, float64, from the stream of the silo that it is for."""
        ...

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, clip: float | Tensor, noise: Noise
    ) -> None:
        """Add a release's noise to clipped sums, in place.

        Args:
            total: one sum a silo, (silos, d), float64.
            noise_ratio: the release's noise relative to z.
            z: base noise multipliers, (silos, 1).
            clip: of a record's term, a number or (silos, 1).
            noise: gives the release's rows of `fill`, (silos, d); called at most once. If it gives fewer rows
                than `total` has, they are tiled: runs that are computed together share their noise.
        """
        ...

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """The smallest z, at most `limit`, at which the composition `census` is within each budget.

        Raises:
            Refused: even `limit` costs more than a budget.
        """
        ...

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """Epsilon of the composition `census` per silo of (n, z, delta): transcripts are (epsilon, delta)-DP.

        Raises:
            Refused: the census cannot be answered on n records.
        """
        ...

    def accountant(self, samplers: Iterable[str]) -> str:
        """A description of the accountant for a plan with these samplers."""
        ...


class SumMechanism(Mechanism, Protocol):
    """A mechanism of secure aggregation (`sums_only`): silos make contributions, and only their sum is read.

    `perturb` turns weighted sums into contributions, in place; its `clip` is the query's, a number, and its z
    the multiplier that is common to all silos. A silo whose terms have norm <= r clip is priced at a larger
    multiplier, z_i.

    Attributes:
        transport: "shares" (two aggregators add up) or "messages" (a shuffler passes whole ones on).
        guarantee_colluding: what holds if the server and the other party collude, in one sentence.
    """

    sums_only: ClassVar[bool] = True
    transport: ClassVar[Literal["shares", "messages"]] = "shares"
    guarantee_colluding: ClassVar[str]

    def step(self, clip: float) -> float:
        """The value of one unit of a contribution, in the unit of the sums."""
        ...

    def reach(self, r: float) -> float:
        """The most that a record moves a contribution by, over the clip, if terms are <= r clip."""
        ...

    def effective(self, z: float, r: float) -> float:
        """z_i where the common multiplier is z."""
        ...

    def common(self, z_i: float, r: float) -> float:
        """The inverse of `effective`."""
        ...

    def colluding(self, z_i: float) -> float:
        """The silo's multiplier where only its share of the noise counts; 0 for none."""
        ...

    def colluding_epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """`epsilons` of the same cases if the two parties collude; infinite without a guarantee."""
        ...

    def aggregators_noise(self, noise_ratio: float, z: float) -> float:
        """Scale in steps of the discrete Gaussian noise that each aggregator adds to its sum; 0 for none."""
        return 0.0


def check_sharers(pool_min: int, honest_fraction: float) -> None:
    """Raise an InputError for a number of silos, or a share of honest ones, that no noise is shared by."""
    if not pool_min >= 1:
        raise InputError("pool_min", pool_min, "at least one silo")
    if not 0 < honest_fraction <= 1:
        raise InputError("honest_fraction", honest_fraction, "in (0, 1]")


class SharedNoise(ABC):
    """Noise on a grid of which every silo adds a share: silos' multipliers and shares, from D(r).

    Attributes:
        pool_min: M_min, how many silos a sum has at least.
        honest_fraction: gamma in (0, 1], of M_min, of silos that add their share and keep it to themselves.
        least: silos whose terms have a smaller share r of the clip are priced as if they had this one.
    """

    pool_min: int
    honest_fraction: float
    least: float

    def __post_init__(self) -> None:
        check_sharers(self.pool_min, self.honest_fraction)

    @abstractmethod
    def sensitivity(self, r: float = 1.0) -> float:
        """D(r), in steps: the sensitivity of a silo whose terms have norm <= r clip."""

    @property
    def sharers(self) -> float:
        """The number that the variance is divided by: gamma M_min, at least the silo itself."""
        return max(1.0, self.honest_fraction * self.pool_min)

    def effective(self, z: float, r: float) -> float:
        """z_i of a silo whose terms have norm <= r clip, r in [0, 1], where the common multiplier is z."""
        return z * self.sensitivity() / self.sensitivity(max(r, self.least))

    def common(self, z_i: float, r: float) -> float:
        """The common multiplier at which such a silo has z_i: the inverse of `effective`."""
        return z_i * self.sensitivity(max(r, self.least)) / self.sensitivity()

    def colluding(self, z_i: float) -> float:
        """The multiplier of a silo that only its share of the noise protects."""
        return z_i / math.sqrt(self.sharers)
