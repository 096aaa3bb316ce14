"""Gaussian noise in every silo, before anything leaves it (ISRL-DP, thesis Definitions 32, 139); or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, pi
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsim.privacy import calibrate, cost
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.mechanism import Mechanism, Noise
from fedsim.protocol.batch import KINDS
from fedsim.protocol.plan import Ask, Census

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.privacy.exponential import Scores

_UNSAMPLED = {kind.sampler for kind in KINDS if not kind.random}


@dataclass(frozen=True)
class SiloGaussian(Mechanism):
    """Clip every record's term and add Gaussian noise in the silo (ISRL-DP).

    A clipped sum of sensitivity s = spread clip plus N(0, (noise_ratio z s)^2) a coordinate is a Gaussian
    mechanism with noise multiplier noise_ratio z; `fedsim.privacy.cost` has what a plan of them costs. With
    clip 0 no record adds anything, and neither does the noise; z = 0 adds none and costs infinity.

    >>> import torch
    >>> SiloGaussian().sigma(0.5, z=torch.tensor([[3.0], [4.0]]), spread=2.0, clip=2.0).tolist()
    [[6.0], [8.0]]
    """

    name: ClassVar[str] = "gaussian"
    floating: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "for each {silo}, the transcript of all messages it sends is (epsilon_guaranteed, delta)-DP with "
        "respect to {change}, whatever the server and the other silos do"
    )

    def sigma(self, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor) -> Tensor:
        """Standard deviation of the noise on a coordinate of a clipped sum, (silos, 1)."""
        return noise_ratio * z * (spread * clip)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Standard normal numbers."""
        for stream, row in zip(streams, rows, strict=True):
            _fill(stream, row)

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """total += sigma noise."""
        drawn = noise().to(total.dtype)  # mixed types take ten times longer below
        cohorts = total.view(-1, *drawn.shape)
        cohorts.addcmul_(self.sigma(noise_ratio, z, spread, clip).view(len(cohorts), -1, 1), drawn)

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """See `fedsim.privacy.calibrate`."""
        return calibrate.noise_multipliers(census, budgets, limit)

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """See `fedsim.privacy.cost`."""
        return cost.epsilons(census, cases)

    def accountant(self, samplers: Iterable[str]) -> str:
        """Exact without sampling."""
        if set(samplers) <= _UNSAMPLED:
            return "exact Gaussian"
        return "privacy loss distribution, connect-the-dots, every rounding upwards"


def _fill(stream: np.random.Generator, row: np.ndarray) -> None:
    """Standard normal numbers; in float32 (simulated silos alone) by Box and Muller (1958), in half the time:
    of 32 bits each, hence within 6.8; the first numbers are the same however many follow.
    """
    if row.dtype == np.float64:
        stream.standard_normal(out=row)
        return
    words = stream.bit_generator.random_raw(-(-len(row) // 2)).view(np.uint32).astype(np.float32)
    radius = np.sqrt(-2 * np.log(words[::2] * np.float32(2**-32) + np.float32(2**-33)))
    angle = words[1::2] * np.float32(2 * pi * 2**-32)
    row[::2] = radius * np.cos(angle)
    row[1::2] = (radius * np.sin(angle))[: len(row) // 2]


@dataclass(frozen=True)
class NoMechanism(Mechanism):
    """Neither clip nor add noise: the non-private baseline, and with local_sgd FedAvg.

    >>> NoMechanism().epsilons((), [(100, 5.0, 1e-6)])
    [inf]
    """

    name: ClassVar[str] = "none"
    private: ClassVar[bool] = False
    simulated: ClassVar[bool] = True
    floating: ClassVar[bool] = True
    squares_add: ClassVar[bool] = False
    guarantee: ClassVar[str] = "none: mechanism none neither clips nor adds noise"
    notices: ClassVar[tuple[str, ...]] = ("No privacy: mechanism none neither clips nor adds noise",)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw nothing."""

    def applied(self, clip: float | Tensor) -> float | Tensor | None:
        """None: terms stay as long as they are."""
        return None

    def choose(self, scores: Sequence[Scores], epsilons: Sequence[float], noise: Noise) -> list[int]:
        """The best."""
        return [int(each.parts.argmax()) for each in scores]

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """Leave the sums as they are."""

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """No noise; it keeps no budget, which a silo sees from the price."""
        return [0.0] * len(budgets)

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """Infinity, whatever is asked."""
        return [inf] * len(cases)

    def accountant(self, samplers: Iterable[str]) -> str:
        """None is needed."""
        return "none"


class ClipOnly(NoMechanism):
    """Clip and add no noise: a baseline, in simulation only, that tells the clip's cost from the noise's."""

    def applied(self, clip: float | Tensor) -> float | Tensor | None:
        """The clip."""
        return clip


class DrawnAtOnce(SiloGaussian):
    """In simulation only: a round's first silo adds the noise of all, so that only their sum has its law.

    The server adds up a_i f(x_i), with one affine f (`linear`), x_i = (clipped sum + e_i) / K_i and e_i ~
    N(0, sigma_i^2 I), independent. Of these it sees what f makes of sum_i b_i e_i, b_i = a_i / K_i, which is
    N(0, sum_i (b_i sigma_i)^2 I). Here e_1 ~ N(0, sum_i (b_i sigma_i / b_1)^2 I), and the others are 0.
    """

    def begin(self, asks: Sequence[Ask], silos: Sequence[tuple[float, int]]) -> None:
        """A round of silos of (weight in the sum up to a common factor, n), before its answers."""
        b = [[[p / ask.batch.size(n)] for p, n in silos] for ask in asks for _ in ask.queries]
        self._b = iter(np.array(b))

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """One silo's numbers for all, of whom one uses them."""
        first, *others = rows
        _fill(next(iter(streams)), first)
        for row in others:
            row[:] = first

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """total[0] += the noise of all."""
        b, sigma = next(self._b), self.sigma(noise_ratio, z, spread, clip).numpy()
        total[0] += float(np.linalg.norm(b * sigma) / b[0, 0]) * noise()[0]
