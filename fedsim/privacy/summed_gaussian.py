"""Gaussian noise on a sum over silos, to which each adds a share of it (proof: docs/summed-noise.md).

Two aggregators that do not collude, the server and a second one, get additive shares modulo 2^64 of every
silo's integers; together they learn the total over a whole roster and nothing else. In steps of clip / 2^20:

    contribution_i = round(w_i S_i / step) + discrete Gaussian of variance sigma^2 / H, H = ceil(gamma M_min).

S_i is the silo's clipped sum, w_i its public weight (`fedsim.protocol.pool`), sigma = ratio z D(1), z common
to all silos, and D(r) = 2 (2^20 r (1 + e) + sqrt(d)) the sensitivity of a silo whose terms have
w_i |term| <= r clip.

**Guarantee.** What the server sees of silo i is (eps, delta)-DP under replacing one of its records, with eps
of `fedsim.privacy.cost` at z_i = z D(1) / D(r_i) and delta less (1 + e^eps) T, as long as every sum holds at
least gamma M_min silos (silo i among them) that add their noise and keep it to themselves. T is what
separates the total's noise from rounded Gaussian noise, over all coordinates and releases:

* *A sum of H discrete Gaussians* of variance s^2 = sigma^2 / H is within e^(+-tau) of one, tau = 2 (H - 1)
  artanh(2 x / (1 - x)), x = exp(-pi^2 s^2): zero to any number of digits.
* *One discrete Gaussian* is within 5e-4 / sigma^4 of a rounded one (docs/grid-noise.md).
* *Floating point.* Contributions and their sums are integers below 2^53 but for a chance below 1e-200 each.
  That totals are taken modulo 2^64 is post-processing, and never happens outside that chance.

The second aggregator alone sees uniform words. If both collude, silo i has its own share of the noise alone:
z_i / sqrt(H) (`colluding`, `colluding_epsilons`).

`noise_by` "aggregators": silos add none, each aggregator adds a full share of variance sigma^2. The other
one's share suffices against either, whatever silos do: no honest fraction, 1.41 times the noise, and nothing
holds if they collude.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian, grid
from fedsim.privacy.grid import STEPS, GridPricing
from fedsim.privacy.mechanism import FLOATING_POINT, Noise
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.privacy.sum_mechanism import SharedNoise, SumMechanism
from fedsim.protocol.plan import Census
from fedsim.protocol.statistics import Extent

if TYPE_CHECKING:
    from torch import Tensor

NoiseBy = Literal["silos", "aggregators"]

LARGEST_NOISE = 2.0**36
"""Steps of noise that one party may add: sums of 2^20 silos are then exact in float64, and far from 2^63."""

_LARGEST_SUM = 2.0**41  # of a silo's sum in steps: 10^6 records, and rounding
_INEXACT = 2.0**21 * 1e-221  # chance that a coordinate's contributions or partial sums pass 2^53


@dataclass(frozen=True)
class SummedGaussian(GridPricing, SharedNoise, SumMechanism):
    """Clip, round to a grid and add a share of discrete Gaussian noise; two aggregators learn the sum alone.

    Silos whose terms have a smaller share r of the clip than `least` are priced as if they had that one.
    """

    extent: Extent  # of the answers
    pool_min: int  # M_min, how many silos a sum has at least
    honest_fraction: float  # gamma in (0, 1]: share of M_min that adds noise and keeps it secret
    noise_by: NoiseBy = "silos"  # who adds the noise
    # whether silos draw discrete Gaussian noise, as deployed ones do; a simulation draws rounded normal
    # numbers from its streams, within H 6e-4 / sigma^4 of it. The price is the same
    exact: bool = False
    least: float = 2.0**-4
    name: ClassVar[str] = "summed_gaussian"
    fields: ClassVar[dict[str, bool]] = {"min_silos": False, "honest_fraction": True, "noise_by": False}
    guarantee: ClassVar[str] = (
        "for each {silo}, everything that the server sees of it, which are sums of silos' answers, is "
        "(epsilon_guaranteed, delta)-DP with respect to {change}, as long as the two "
        "aggregators do not collude and, where silos add the noise, honest_fraction of min_silos silos in "
        "every sum add theirs and keep it to themselves"
    )
    guarantee_colluding: ClassVar[str] = (
        "if the two aggregators collude, each silo has its own share of the noise alone: (epsilon_colluding, "
        "delta)-DP, infinite where the aggregators add the noise"
    )

    def sensitivity(self, r: float = 1.0) -> float:
        """See `SharedNoise`."""
        return grid.sensitivity(self.extent.largest, self.extent.spread, r)

    @property
    def sharers(self) -> int:
        """H; 1 for aggregators."""
        return 1 if self.noise_by == "aggregators" else super().sharers

    def exactly(self, most: int) -> tuple[SumMechanism, tuple[str, ...]]:
        """See `SumMechanism`. Where aggregators add the noise, the silo draws none."""
        exact = self.noise_by == "aggregators" or self.extent.largest <= most
        return replace(self, exact=exact), () if exact else (FLOATING_POINT,)

    def priced_for(self, extent: Extent) -> SumMechanism:
        """See `SumMechanism`."""
        return replace(self, extent=extent)

    def step(self, clip: float) -> float:
        """The value of one unit of a contribution, in the unit of the sums."""
        return clip / STEPS

    def reach(self, r: float) -> float:
        """See `SumMechanism`."""
        return self.sensitivity(r) / STEPS

    def colluding(self, z_i: float) -> float:
        """The multiplier of a silo that only its share of the noise protects."""
        return super().colluding(z_i) if self.noise_by == "silos" else 0.0

    def variance(self, silos: int) -> float:
        """See `SumMechanism`; two aggregators add all of it."""
        return super().variance(silos) if self.noise_by == "silos" else 2.0

    def colluding_epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """`epsilons` of the same cases if the aggregators collude; finite if z > 0.

        One silo's noise is one discrete Gaussian, whose Renyi divergence is at most the Gaussian's (Canonne,
        Kamath and Steinke 2020, Proposition 5), with no distance to pay for: the smaller price of the two.
        """
        alone = [(n, self.colluding(z), delta) for n, z, delta in cases]
        close = self.epsilons(census, alone)
        return [min(epsilon, _renyi(census, *case)) for epsilon, case in zip(close, alone, strict=True)]

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Standard normal numbers, if any are wanted."""
        if not self.exact and self.noise_by == "silos":
            SiloGaussian().fill(streams, rows)

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """total = round(total / step) + the silo's noise: integers, for `step`; z is the common multiplier.
        ValueError if the sums are larger than what was priced, or of a smaller spread; Refused if the noise
        is beyond `LARGEST_NOISE`.
        """
        moved = grid.checked_sensitivity(self.extent, total, spread)
        rows = grid.on_grid(total, clip, _LARGEST_SUM)
        if self.noise_by == "silos":
            scales = [self._scale(noise_ratio * each, moved) for each in z.double().flatten().tolist()]
            rows = grid.noisy(rows, scales) if self.exact else rows + _rounded(noise().numpy(), scales)
        total.copy_(torch.from_numpy(rows))

    def aggregators_noise(self, z: float, size: int, spread: float) -> float:
        """Scale in steps of the discrete Gaussian noise that each aggregator adds to its sum of shares."""
        if self.noise_by == "silos":
            return 0.0
        return self._scale(z, grid.sensitivity(size, spread))

    def distance(self, census: Census, z: float) -> float:
        """T of the module's docstring for a silo of effective multiplier z."""
        least = grid.sensitivity(self.extent.smallest, self.extent.spread)
        sigma = z * self.sensitivity(self.least) * (least / self.sensitivity())
        one = grid.distance(self.extent.largest, census, sigma)
        if one == 1.0:
            return one
        apart = sum(count * (self._sums(sigma / weight) + _INEXACT) for weight, count in grid.weights(census))
        return min(1.0, one + self.extent.largest * apart)

    def _scale(self, z: float, moved: float) -> float:
        """The scale of one party's share of the noise, in steps; a record moves the sums by D = `moved`."""
        scale = z * moved / math.sqrt(self.sharers)
        if not scale <= LARGEST_NOISE:
            most = f"the {LARGEST_NOISE:g} that sums are exact with"
            raise Refused(f"noise of {scale:.6g} steps, more than {most}")
        return scale

    def _sums(self, sigma: float) -> float:
        """Distance of a sum of the silos' discrete Gaussians from one of scale sigma, a coordinate."""
        return sum_distance(sigma / math.sqrt(self.sharers), self.sharers)


def sum_distance(scale: float, count: int) -> float:
    """Bound the total variation between a sum of `count` discrete Gaussians of `scale` steps each and one of
    the same variance.

    >>> sum_distance(0.7, 2) > 1e-3, sum_distance(2.0, 1000) < 1e-13, sum_distance(50.0, 1)
    (True, True, 0.0)
    """
    x = math.exp(-((math.pi * scale) ** 2))
    ripple = 2 * x / (1 - x)
    if count <= 1 or ripple >= 1:
        return float(count > 1)
    return min(1.0, math.expm1(2 * (count - 1) * math.atanh(ripple)) / 2)


def _renyi(census: Census, n: int, z: float, delta: float) -> float:
    """The price by Renyi divergence, sampled batches as if they held the record."""
    composed = cost.compose(census, n)
    if composed.silent:
        return 0.0
    everything, _, left = composed.gaussian_bound(delta)
    return gaussian.renyi_epsilon(everything / z, left) if z > 0 and left > 0 else math.inf


def _rounded(normal: np.ndarray, scales: list[float]) -> np.ndarray:
    """Rounded normal noise whose variance is scale^2; rounding adds 1/12."""
    spread = np.sqrt(np.maximum(0.0, np.square(scales) - 1 / 12))
    integers: np.ndarray = np.rint(normal * spread[:, None]).astype(np.int64)
    return integers


NAMED = SummedGaussian(Extent(1, 1), 1, 1.0)
