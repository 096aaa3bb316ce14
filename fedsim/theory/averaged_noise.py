"""Variance of the noise in a round's mean: each silo's noise averaged, or that of secure aggregation.

With `calibration: accountant` a theorem's sigma is never added. V, the root mean squared error of a round's
mean gradient, is therefore computed from the noise that silos will add. It depends on public numbers alone.
For secure aggregation the multipliers are those of Gaussian noise: binomial noise has up to 40 % more, and
shuffled messages of single records have less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.privacy.cost import compose
from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.plan import Census, Release
from fedsim.protocol.statistics import GRADIENT
from fedsim.protocol.unit import RECORD, Unit
from fedsim.theory.participants import Law, mean_shares, planned_share
from fedsim.theory.symbols import Premises

if TYPE_CHECKING:
    from fedsim.privacy.sum_mechanism import SumMechanism
    from fedsim.protocol.pool import Pool


@dataclass(frozen=True)
class Kind:
    """Releases of one kind in a plan: the same batch and noise ratio."""

    batch: Batch  # which records
    count: int  # how many in a run of all rounds
    ratio: float = 1.0  # noise multiplier relative to the plan's base


class Noise(Protocol):
    """The variance of the noise in a round's mean gradient."""

    def variance(self, clip: float, kind: Kind, plan: Sequence[Kind]) -> float:
        """Per coordinate, of a release of `kind` with records' terms bounded by `clip`, one of `plan`."""


@dataclass(frozen=True)
class AveragedNoise:
    """Silos that add noise to their answers: their budgets, and the share of each one in the mean."""

    budgets: tuple[Budget, ...]  # (n_i, eps_i, delta_i)
    factors: tuple[float, ...]  # E[1{i in S_r} / M_r^2] (N p_i)^2, by which a silo's variance is multiplied
    shares: tuple[float, ...]  # parts of all rounds that silos plan for; a silo's first is one of them
    unit: Unit = RECORD

    def variance(self, clip: float, kind: Kind, plan: Sequence[Kind]) -> float:
        """Per coordinate of the mean: sum_i factor_i (z_i ratio spread clip / K_i)^2, z_i for `plan`.

        `kind` is the release in question, one of `plan`; `clip` bounds a record's term of it.
        """
        moved = self.unit.spread(GRADIENT.name) * clip
        return sum(
            factor * (z * kind.ratio * moved / kind.batch.size(budget.n)) ** 2
            for factor, z, budget in zip(self.factors, self.multipliers(plan), self.budgets, strict=True)
        )

    def multipliers(self, plan: Sequence[Kind]) -> list[float]:
        """z_i of each silo; one that is in a round is in 1 + (R - 1) share_i of the R rounds on average."""
        plans = {share: _census(plan, share, self.unit) for share in set(self.shares)}
        silos = list(zip(self.budgets, self.shares, strict=True))
        if any(kind.batch.random for kind in plan):
            return [_calibrated(budget, plans[share]) for budget, share in silos]
        # A closed form is linear in the weight of the plan, which is the same for every n.
        most = max(budget.n for budget in self.budgets)
        weights = {share: compose(census, most).weight for share, census in plans.items()}
        return [weights[share] * _calibrated(budget, _ONE) for budget, share in silos]


def _census(plan: Sequence[Kind], share: float, unit: Unit) -> Census:
    counts = ((kind, ceil(1 + (kind.count - 1) * share - 1e-9)) for kind in plan if kind.count > 0)
    return tuple(
        (Release(kind.batch, 1 / kind.ratio, unit.removed_from(kind.batch)), count) for kind, count in counts
    )


_ONE: Census = ((Release(FULL, 1.0), 1),)  # one release of every record


@lru_cache(maxsize=65536)
def _calibrated(budget: Budget, census: Census) -> float:
    return noise_multipliers(census, [budget], inf)[0]


def averaged_noise(premises: Premises) -> AveragedNoise:
    """The noise of silos that calibrate it to their budgets."""
    participants, num_silos = premises.participants, len(premises.claims)
    weights, seen = premises.relative_weights, mean_shares(participants, num_silos)
    factors = tuple(share * weight**2 for share, weight in zip(seen, weights, strict=True))
    shares = tuple(planned_share(participants, num_silos))
    return AveragedNoise(premises.claims, factors, shares, premises.unit)


@dataclass(frozen=True)
class SummedNoise:
    """Secure aggregation: every silo's budget, and the share of the common noise in a round's mean."""

    own: AveragedNoise  # calibration of each silo alone
    mechanism: SumMechanism  # the mechanism of secure aggregation
    pool: Pool  # the silos
    law: Law  # of M_r, none below `pool.min_silos`: a sum of fewer is not released
    by_silos: float  # variance that each silo in a sum adds to it, in the unit of (ratio z reach clip)^2
    by_aggregators: float  # variance that the aggregators add, whatever the number of silos

    def variance(self, clip: float, kind: Kind, plan: Sequence[Kind]) -> float:
        """Per coordinate of the mean: (z ratio D clip u N)^2 E[(by_silos M_r + by_aggregators) / M_r^2].

        D is the sensitivity of a contribution in units of the clip: 2 and what rounding adds.
        """
        spread = sum(p * (self.by_silos / m + self.by_aggregators / m**2) for m, p in self.law)
        worth = self.pool.unit(kind.batch) * len(self.pool.sizes)
        sensitivity = self.mechanism.reach(1.0) * clip
        return (self.multiplier(plan) * kind.ratio * sensitivity * worth) ** 2 * spread

    def multiplier(self, plan: Sequence[Kind]) -> float:
        """z: that of the silos with the largest epsilon, which others meet by a smaller clip."""
        batches = [kind.batch for kind in plan]
        loosest = max(budget.epsilon for budget in self.own.budgets)
        needed = enumerate(zip(self.own.multipliers(plan), self.own.budgets, strict=True))
        return max(
            self.mechanism.common(z, self.pool.heaviest(i, batches))
            for i, (z, budget) in needed
            if budget.epsilon == loosest
        )
