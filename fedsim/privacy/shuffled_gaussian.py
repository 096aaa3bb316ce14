"""Gaussian noise in every silo and its messages anonymised whole (shuffled ISRL-DP).

**Guarantee.** What the server sees of silo i is (eps, delta)-DP under replacing one of its records, eps being
the smaller of two:

* *The silo's own noise* (`fedsim.privacy.cost`, as for mechanism gaussian): it holds if the shuffler
  colludes, whatever the other silos are. Where a silo has more than one record it is all that is claimed: its
  message hides among others by what the whole message is, and never by its epsilon for one record.
* *Other silos' messages* (`fedsim.privacy.blanket`), where every silo is one record of weight 1: replacing
  the record replaces the silo, its message is y + N(0, s^2 I), |y| <= C, and so is every other one. At least
  ceil(gamma M_min) senders, the silo among them, add their noise and keep it to themselves. A release of
  weight w has C / s = w / (2 z). Rounds compose as dominating pairs, and (1 + e^eps) times the blankets'
  distance from the truth is a twentieth of delta. A round is one message and one release: a silo
  refuses a second draw of a batch in it (`silos.vault.admission`). What others send does not depend on the
  clip: contributions are in units of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedsim.common.errors import Refused
from fedsim.privacy import blanket, calibrate, cost, loss
from fedsim.privacy.calibrate import Budget, over_budget
from fedsim.privacy.grid import weights
from fedsim.privacy.mechanism import Noise
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.privacy.sum_mechanism import SumMechanism, check_sharers, honest_silos
from fedsim.protocol.plan import Census

if TYPE_CHECKING:
    from torch import Tensor

_APART = 0.05  # share of delta for the distance of blankets from the truth
_RARE = 0.05  # and for rounds in which there are few of them
_UP_TO = (1.0, 4.0, 12.0)  # epsilons for which (1 + e^eps) is kept small in turn
_FEWEST = 8  # blanket messages below which it is not tried either
_FURTHEST = 2.0  # and C / s above which
_CLOSE = 1.002  # a multiplier that is searched for, by halving
_SMALLEST_DELTA = 1e-9  # below, floating point could tell


@dataclass(frozen=True)
class ShuffledGaussian(SumMechanism):
    """Clip every record's term, add Gaussian noise in the silo; a shuffler hides whose message is whose."""

    pool_min: int  # M_min, how many silos a round has at least
    honest_fraction: float = 1.0  # gamma in (0, 1]: share of M_min that adds noise and keeps it secret
    single_records: bool = False  # whether every silo of the federation is one record, and all weigh the same
    name: ClassVar[str] = "shuffled_gaussian"
    gradients_alone: ClassVar[bool] = True
    transport: ClassVar[Literal["shares", "messages"]] = "messages"
    guarantee: ClassVar[str] = (
        "for each {silo}, everything that the server sees of it, which are messages in random order, is "
        "(epsilon_guaranteed, delta)-DP with respect to {change}; where silos have more "
        "than one {unit}, the order adds nothing to the silo's own noise"
    )
    guarantee_colluding: ClassVar[str] = (
        "if shuffler and server collude, each silo has its own noise: (epsilon_colluding, delta)-DP, "
        "whatever the server and the other silos do"
    )

    def __post_init__(self) -> None:
        check_sharers(self.pool_min, self.honest_fraction)

    def step(self, clip: float) -> float:
        """The value of one unit of a contribution: the clip, so that messages at any clip look alike."""
        return clip

    def reach(self, r: float) -> float:
        """See `SumMechanism`."""
        return 2 * r

    def effective(self, z: float, r: float) -> float:
        """z_i of a silo whose terms have norm <= r clip, r in [0, 1], where the common multiplier is z.

        Of single records it is z: what hides a message is how far the others' may be, whose clip is whole.
        """
        if self.single_records:
            return z
        return z / r if r > 0 else inf

    def common(self, z_i: float, r: float) -> float:
        """The common multiplier at which such a silo has z_i: the inverse of `effective`."""
        return z_i if self.single_records else z_i * r

    def colluding(self, z_i: float) -> float:
        """The silo's multiplier itself: its noise is independent of the other silos."""
        return z_i

    def colluding_epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """`epsilons` of the same cases if shuffler and server collude."""
        return cost.epsilons(census, cases)

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Standard normal numbers."""
        SiloGaussian().fill(streams, rows)

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """total = total / clip + spread ratio z noise, z being common to all silos; noise alone at clip 0.

        In units of the clip: a server that gave one silo another clip than the others, by another broadcast,
        would else know its message by its size.
        """
        total.div_(clip).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        SiloGaussian().perturb(total, noise_ratio, z, spread, 1.0, noise)

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """See the module's docstring."""
        own = cost.epsilons(census, cases)
        return [
            min(epsilon, self._hidden(census, *case, epsilon))
            for epsilon, case in zip(own, cases, strict=True)
        ]

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """See `fedsim.privacy.calibrate`."""
        if not self.single_records:
            return calibrate.noise_multipliers(census, budgets, limit)
        found = {budget: self._smallest(census, budget, limit) for budget in set(budgets)}
        return [found[budget] for budget in budgets]

    def accountant(self, samplers: Iterable[str]) -> str:
        """The accountant of Gaussian noise, and that of messages in random order."""
        own = SiloGaussian().accountant(samplers)
        return f"{own}; Gaussian blanket, FFT" if self.single_records else own

    def _hidden(self, census: Census, n: int, z: float, delta: float, own: float) -> float:
        """Epsilon by amplification by shuffling; infinity where nothing is claimed."""
        if not self.single_records or n != 1 or not 0 < own < inf or delta < _SMALLEST_DELTA:
            return inf
        honest = honest_silos(self.pool_min, self.honest_fraction)
        found = (_hidden(tuple(weights(census)), honest, z, delta, most) for most in _UP_TO)
        return next((epsilon for epsilon in found if epsilon < inf), inf)

    def _smallest(self, census: Census, budget: Budget, limit: float) -> float:
        (own,) = calibrate.noise_multipliers(census, [budget], inf)
        if own == 0 or budget.epsilon == inf:
            return own

        def spent(z: float) -> float:
            return self.epsilons(census, [(budget.n, z, budget.delta)])[0]

        low = high = own
        while spent(low) <= budget.epsilon:
            low, high = low / 2, low
        while high > low * _CLOSE:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if spent(middle) > budget.epsilon else (low, middle)
        if high > limit:
            raise Refused(over_budget(spent(limit), limit, budget.epsilon))
        return high


@lru_cache(maxsize=256)
def _hidden(
    released: tuple[tuple[float, int], ...], honest: int, z: float, delta: float, most: float
) -> float:
    """Epsilon of releases (weight, count) among `honest` senders; infinity above `most`."""
    rounds = sum(count for _, count in released)
    apart, pairs = _APART * delta / (1 + math.exp(most)) / rounds, []
    for weight, count in released:
        share = blanket.widest(distance := weight / (2 * z), honest, apart)
        pairs.append((blanket.BlanketPair.of(distance, honest, share, _RARE * delta / rounds), count))
    few = any(pair.messages < _FEWEST or pair.distance > _FURTHEST for pair, _ in pairs)
    if few or sum(count * pair.infinite for pair, count in pairs) > delta / 2:
        return inf
    epsilon = loss.epsilon(pairs, (1 - _APART) * delta)
    return epsilon if epsilon <= most else inf


NAMED = ShuffledGaussian(1)
