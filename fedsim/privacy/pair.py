"""What every dominating pair has: its profile, its losses, and itself in the other order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Pair(ABC):
    """A dominating pair of distributions; its profile is convex in e^eps."""

    __slots__ = ()

    @abstractmethod
    def profile(self, epsilon: Array) -> Array:
        """An upper bound of the hockey-stick divergence at eps >= 0, shape as epsilon."""

    @abstractmethod
    def reach(self, tail: float) -> float:
        """A loss beyond which the profile is at most `tail`, or all that it ever falls to."""

    @property
    def reverse(self) -> Self:
        """The pair in the other order, itself where it is alike in both; both are in reach of either."""
        return self

    @property
    def largest(self) -> float:
        """The largest loss that there is."""
        return math.inf
