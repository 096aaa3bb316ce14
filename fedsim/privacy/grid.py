"""Noise on a grid, without floating point: integers, their sensitivity, and a price with T in delta.

One silo adds exact discrete Gaussian noise (`GridGaussian`; proof: docs/grid-noise.md). Secure aggregation
uses the same grid and price (docs/summed-noise.md).

**Guarantee** of `GridGaussian`. That of `fedsim.privacy.cost`, with z = sigma over the raised sensitivity,
and delta less (1 + e^eps) T, where T is the total-variation distance of all the noise from rounded Gaussian
noise. In steps of clip / 2^20, for d coordinates:

* *Sensitivity.* Replacing a record's term moves the rounded sum by at most D = s 2^20 (1 + e) + 2 sqrt(d), s
  the statistic's spread: rounding moves two sums by sqrt(d). Where s = 2, adding or removing one (Poisson)
  moves it by D / 2, and one that counts j times (with replacement) by j D. Where a unit is added or removed,
  s = 1 (`Plan.spread`) and it moves it by D at most. e = 2e-4 covers float64: sums of P <= `MAX_RECORDS`
  terms, in any order, stray by P^2 2^-53 <= 1.2e-4 of the clip, the division by 3e-10 of it, and 4.2e-6 are
  for the next point.
* *Ideal noise.* Rounding commutes with adding integers, so round(N(0, s^2)) on the rounded sum is a function
  of a Gaussian release of noise s, s^2 = sigma^2 - 1/12: `fedsim.privacy.cost` prices it, sampled or not.
* *Distance.* The discrete Gaussian of scale sigma >= `FINEST` is within 5e-4 / sigma^4 of round(N(0, s^2)) a
  coordinate, whatever the sum, the batch and the history. A whole transcript is within the sum T over its
  releases, on either data set: P(A) <= P_ideal(A) + T <= e^eps (Q(A) + T) + delta' + T.

What leaves is a function of the noisy integers and the public clip. It rests on clipped sums being what
`silos.vault.records` says.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fedsim.common.errors import Refused
from fedsim.privacy import calibrate, cost
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.discrete_noise import Integers, with_noise
from fedsim.privacy.mechanism import Mechanism, Noise
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.plan import Census
from fedsim.protocol.statistics import Extent

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.privacy.exponential import Scores

STEPS = 2**20  # steps of the grid to the clip

MAX_RECORDS = 1_000_000  # records of a silo up to which the rounding of sums in float64 is covered

FINEST = 100.0
"""Steps that a release's noise must have for any claim; `Limits` and any budget ask for far more."""

ROUNDING = 2e-4
"""Relative excess over the clip by which a term can move a sum in float64 (docs/grid-noise.md)."""

_FAR = 5e-4  # distance from rounded Gaussian noise, times sigma^4
_SHARE = 1e-3  # of delta, for that distance
_SEARCH = 1.05


def sensitivity(dimension: int, spread: float, share: float = 1.0) -> float:
    """D = spread 2^20 share (1 + e) + 2 sqrt(d) of a rounded sum of terms of norm <= share clip, in steps."""
    return spread * (STEPS * share * (1 + ROUNDING)) + 2 * math.sqrt(dimension)


def on_grid(total: Tensor, clip: float | Tensor, largest: float = 2.0**62) -> Integers:
    """The nearest integers to total / step, (silos, d), at most `largest`; 0 / 0 counts as 0."""
    steps = (total / clip).mul_(STEPS).nan_to_num_(nan=0.0).clamp_(-largest, largest)
    rounded: Integers = steps.round_().to(torch.int64).numpy()
    return rounded


def noisy(rows: Integers, scales: Sequence[float]) -> Integers:
    """Exact discrete Gaussian noise on each row, (silos, d), of that row's scale in steps."""
    return np.stack([with_noise(row, scale) for row, scale in zip(rows, scales, strict=True)])


def checked_sensitivity(extent: Extent, total: Tensor, spread: float) -> float:
    """D of these sums; ValueError unless they are among those that were priced."""
    size = total.shape[-1]
    if not extent.smallest <= size <= extent.largest or spread < extent.spread:
        raise ValueError(f"sums of {size} numbers and spread {spread:g}; what was priced is {extent}")
    return sensitivity(size, spread)


def weights(census: Census) -> list[tuple[float, int]]:
    """(weight, count) of the releases that release anything."""
    return [(release.weight, count) for release, count in census if count and release.weight]


def distance(dimension: int, census: Census, sigma: float) -> float:
    """Total variation between discrete and rounded Gaussian noise over a whole composition.

    A release of weight w is of queries with sum ratio^-2 = w^2, so that sum ratio^-4 <= w^4 and no query's
    noise is below sigma / w steps, sigma being that of a release of weight 1.
    """
    released = weights(census)
    if any(sigma < FINEST * weight for weight, _ in released):
        return 1.0
    return min(1.0, _FAR * dimension * sum(count * (w / sigma) ** 4 for w, count in released))


class GridPricing(ABC):
    """Prices of Gaussian noise, less (1 + e^eps) T of delta for being only within T of it."""

    @abstractmethod
    def distance(self, census: Census, z: float) -> float:
        """T: total variation between the noise of the whole composition and rounded Gaussian noise."""

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
        """The accountant of Gaussian noise, the distance from which is in delta."""
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
                f"exact noise covers the rounding of sums over {MAX_RECORDS:,} units, the silo has {n:,}; "
                "floating-point noise does not ask (policy.exact_noise_dimension: 0)"
            )


@dataclass(frozen=True)
class GridGaussian(GridPricing, Mechanism):
    """Clip every record's term, round the sum to a grid and add exact discrete Gaussian noise in the silo."""

    extent: Extent  # of the answers
    name: ClassVar[str] = "gaussian"
    guarantee: ClassVar[str] = SiloGaussian.guarantee

    @property
    def sensitivity(self) -> float:
        """The smallest D of the module's docstring, in steps of the grid."""
        return sensitivity(self.extent.smallest, self.extent.spread)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw nothing: the noise is not a stream's."""

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """total = (round(total / step) + discrete Gaussian noise) step; with clip 0, zero. ValueError for
        sums that were not priced: larger ones, or of a smaller spread.
        """
        moved = checked_sensitivity(self.extent, total, spread)
        scales = (noise_ratio * z.double() * moved).flatten().tolist()
        total.copy_(torch.from_numpy(noisy(on_grid(total, clip), scales))).mul_(clip / STEPS)

    def choose(self, scores: Sequence[Scores], epsilons: Sequence[float], noise: Noise) -> list[int]:
        """See `Mechanism`; exact, and of no stream."""
        from fedsim.privacy.exponential import chosen_exactly

        return [chosen_exactly(*each) for each in zip(scores, epsilons, strict=True)]

    def distance(self, census: Census, z: float) -> float:
        """T: total variation between the noise of a whole census and rounded Gaussian noise.

        As if every answer were as large as the largest and had as little noise as the smallest.
        """
        return distance(self.extent.largest, census, z * self.sensitivity)
