"""What noise on a grid shares, whoever adds it: integers, their sensitivity, and a price with T in delta.

Proofs: docs/grid-noise.md, and docs/summed-noise.md for sums over silos.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsim.common.errors import Refused
from fedsim.mechanisms.discrete_noise import Integers
from fedsim.mechanisms.silo_gaussian import SiloGaussian
from fedsim.privacy import calibrate, cost
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.plan import Census

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 2**20
"""Steps of the grid to the clip."""

MAX_RECORDS = 1_000_000
"""Records of a silo up to which the rounding of sums in float64 is covered."""

FINEST = 100.0
"""Steps that a release's noise must have for any claim; `Limits` and any budget ask for far more."""

ROUNDING = 2e-4
"""By how much more than the clip a term can move a sum in float64 (docs/grid-noise.md), rounding apart."""

_FAR = 5e-4  # distance from rounded Gaussian noise, times sigma^4
_SHARE = 1e-3  # of delta, for that distance
_SEARCH = 1.05


def sensitivity(dimension: int, share: float = 1.0) -> float:
    """D = 2 (2^20 share (1 + e) + sqrt(d)) of a rounded sum whose terms have norm <= share clip, in steps."""
    return 2 * (STEPS * share * (1 + ROUNDING) + math.sqrt(dimension))


def on_grid(total: Tensor, clip: float | Tensor, largest: float = 2.0**62) -> Integers:
    """The nearest integers to total / step, (silos, d), at most `largest`; 0 / 0 counts as 0."""
    steps = (total / clip).mul_(STEPS).nan_to_num_(nan=0.0).clamp_(-largest, largest)
    rounded: Integers = steps.round_().to(torch.int64).numpy()
    return rounded


def check_dimension(total: Tensor, dimension: int) -> None:
    """Raise a ValueError unless the sums are of the dimension whose sensitivity was priced."""
    if total.shape[-1] != dimension:
        raise ValueError(f"sums of {total.shape[-1]} numbers, a mechanism for {dimension}")


def weights(census: Census) -> list[tuple[float, int]]:
    """(weight, count) of the releases that release anything."""
    return [(release.weight, count) for release, count in census if count and release.weight]


def distance(dimension: int, census: Census, sigma: float) -> float:
    """Total variation between a whole census of discrete noise and rounded Gaussian noise.

    A release of weight w is of queries with sum ratio^-2 = w^2, so that sum ratio^-4 <= w^4 and no query's
    noise is below sigma / w steps.

    Args:
        dimension: d.
        census: what is released.
        sigma: of a release of weight 1, in steps.
    """
    released = weights(census)
    if any(sigma < FINEST * weight for weight, _ in released):
        return 1.0
    return min(1.0, _FAR * dimension * sum(count * (w / sigma) ** 4 for w, count in released))


class GridPricing(ABC):
    """Prices of Gaussian noise, less (1 + e^eps) T of delta for being only within T of it."""

    @abstractmethod
    def distance(self, census: Census, z: float) -> float:
        """T: total variation between all noise of a census and rounded Gaussian noise."""

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """See `fedsim.privacy.calibrate`; more where the noise is not fine enough for the budget's delta."""
        check_sizes(budget.n for budget in budgets)
        less = [replace(budget, delta=(1 - _SHARE) * budget.delta) for budget in budgets]
        found = calibrate.noise_multipliers(census, less, limit)
        cases = list(zip(budgets, found, strict=True))
        fine = {case: self._fine(census, *case, limit) for case in set(cases)}
        return [fine[case] for case in cases]

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """See `fedsim.privacy.cost`; infinite where (1 + e^eps) T is beyond its share of delta."""
        check_sizes(n for n, _, _ in cases)
        prices = cost.epsilons(census, [(n, z, (1 - _SHARE) * delta) for n, z, delta in cases])
        return [
            epsilon if self._claimed(census, epsilon, z, delta) else inf
            for epsilon, (_, z, delta) in zip(prices, cases, strict=True)
        ]

    def accountant(self, samplers: Iterable[str]) -> str:
        """That of Gaussian noise: the distance from it is in delta."""
        return SiloGaussian().accountant(samplers)

    def _claimed(self, census: Census, epsilon: float, z: float, delta: float) -> bool:
        """Whether (1 + e^eps) T <= share of delta."""
        distance = self.distance(census, z)
        share = math.log(_SHARE) + math.log(delta)
        return distance == 0 or math.log(distance) + np.logaddexp(0, epsilon) <= share

    def _fine(self, census: Census, budget: Budget, z: float, limit: float) -> float:
        """The first of z, 1.05 z, .. that has a finite price."""
        if budget.epsilon == inf:
            return z
        tried = z
        while self.epsilons(census, [(budget.n, tried, budget.delta)]) == [inf]:
            if tried >= limit:
                raise Refused(
                    f"exact noise at multiplier {limit:.6g}, the largest this silo allows, is "
                    f"{self.distance(census, tried):.3g} from Gaussian noise, which times 1 + e^epsilon is "
                    f"more than {_SHARE:g} of delta {budget.delta:.6g}"
                )
            tried = min(limit, tried * _SEARCH)
        return tried


def check_sizes(sizes: Iterable[int]) -> None:
    """Refuse silos of more than `MAX_RECORDS`, whose sums in float64 stray further."""
    for n in sizes:
        if n > MAX_RECORDS:
            raise Refused(
                f"exact noise covers the rounding of sums over {MAX_RECORDS:,} records, the silo has {n:,}; "
                "floating-point noise does not ask (policy.exact_noise_dimension: 0)"
            )
