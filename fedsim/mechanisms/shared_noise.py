"""Noise of which every silo adds a share to its contribution, on a grid: what such mechanisms have alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from fedsim.common.errors import InputError


def check_sharers(pool_min: int, honest_fraction: float) -> None:
    """Raise an InputError for a number of silos, or a share of honest ones, that no noise is shared by."""
    if not pool_min >= 1:
        raise InputError("pool_min", pool_min, "at least one silo")
    if not 0 < honest_fraction <= 1:
        raise InputError("honest_fraction", honest_fraction, "in (0, 1]")


class SharedNoise(ABC):
    """Silos' multipliers and shares, from D(r).

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
    def moved(self, r: float) -> float:
        """D(r), in steps: the sensitivity of a silo whose terms have norm <= r clip."""

    @property
    def sharers(self) -> float:
        """By how much the variance is divided: gamma M_min, at least the silo itself."""
        return max(1.0, self.honest_fraction * self.pool_min)

    def effective(self, z: float, r: float) -> float:
        """z_i of a silo whose terms have norm <= r clip, r in [0, 1], where the common multiplier is z."""
        return z * self.moved(1.0) / self.moved(max(r, self.least))

    def common(self, z_i: float, r: float) -> float:
        """The common multiplier at which such a silo has z_i: the inverse of `effective`."""
        return z_i * self.moved(max(r, self.least)) / self.moved(1.0)

    def colluding(self, z_i: float) -> float:
        """The multiplier of a silo under its own share of the noise alone."""
        return z_i / math.sqrt(self.sharers)
