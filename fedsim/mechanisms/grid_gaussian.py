"""Gaussian noise without floating point: sums on a grid, exact discrete noise (proof: docs/grid-noise.md).

**Guarantee.** That of `fedsim.privacy.cost`, with z = sigma over the raised sensitivity, and delta less
(1 + e^eps) T, where T is the total-variation distance of all the noise from rounded Gaussian noise. In steps
of clip / 2^20, for d coordinates:

* *Sensitivity.* Replacing a record's term moves the rounded sum by at most D = 2 (2^20 (1 + e) + sqrt(d)),
  adding or removing one (Poisson) by D / 2, and one that counts j times (with replacement) by j D: rounding
  moves two sums by sqrt(d). e = 2e-4 covers float64: sums of P <= `MAX_RECORDS` terms, in any order, stray
  by P^2 2^-53 <= 1.2e-4 of the clip, the division by 3e-10 of it, and 4.2e-6 are for the next point.
* *Ideal noise.* Rounding commutes with adding integers, so round(N(0, s^2)) on the rounded sum is a function
  of a Gaussian release of noise s, s^2 = sigma^2 - 1/12: `fedsim.privacy.cost` prices it, sampled or not.
* *Distance.* The discrete Gaussian of scale sigma >= `FINEST` is within 5e-4 / sigma^4 of round(N(0, s^2)) a
  coordinate, whatever the sum, the batch and the history. A whole transcript is within the sum T over its
  releases, on either data set: P(A) <= P_ideal(A) + T <= e^eps (Q(A) + T) + delta' + T.

What leaves is a function of the noisy integers and the public clip. It rests on clipped sums being what
`silos.statistics` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.mechanisms import grid
from fedsim.mechanisms.discrete_noise import with_noise
from fedsim.mechanisms.grid import FINEST, MAX_RECORDS, STEPS, GridPricing
from fedsim.mechanisms.silo_gaussian import SiloGaussian
from fedsim.protocol.plan import Census

__all__ = ["FINEST", "MAX_RECORDS", "STEPS", "GridGaussian"]


@dataclass(frozen=True)
class GridGaussian(GridPricing):
    """Clip every record's term, round the sum to a grid and add exact discrete Gaussian noise in the silo.

    Args:
        dimension: d, of the answers.
    """

    dimension: int
    name: ClassVar[str] = "gaussian"
    private: ClassVar[bool] = True
    clips: ClassVar[bool] = True
    squares_add: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    unit: ClassVar[str] = SiloGaussian.unit
    guarantee: ClassVar[str] = SiloGaussian.guarantee
    notices: ClassVar[tuple[str, ...]] = ()

    @property
    def sensitivity(self) -> float:
        """Of a rounded sum, in steps of the grid: D of the module's docstring."""
        return grid.sensitivity(self.dimension)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw nothing: the noise is not a stream's."""

    def perturb(
        self,
        total: Tensor,
        noise_ratio: float,
        z: Tensor,
        clip: float | Tensor,
        noise: Callable[[], Tensor],
    ) -> None:
        """total = (round(total / step) + discrete Gaussian noise) step; with clip 0, zero.

        Raises:
            ValueError: the sums are not of this mechanism's dimension, whose sensitivity it knows.
        """
        grid.check_dimension(total, self.dimension)
        scales = (noise_ratio * z.double() * self.sensitivity).flatten().tolist()
        rows = grid.on_grid(total, clip)
        noisy = np.stack([with_noise(row, scale) for row, scale in zip(rows, scales, strict=True)])
        total.copy_(torch.from_numpy(noisy)).mul_(clip / STEPS)

    def distance(self, census: Census, z: float) -> float:
        """T: total variation between the noise of a whole census and rounded Gaussian noise."""
        return grid.distance(self.dimension, census, z * self.sensitivity)
