"""The noise that is really there where answers are added up over silos: one noise on the sum, common to all.

As `fedsim.theory.averaged_noise`, for `privacy.mechanism` of sums. Multipliers are those of Gaussian sums:
binomial ones are up to two fifths more, and those of single records in random order less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.mechanisms.mechanism import SumMechanism
from fedsim.protocol.pool import Pool
from fedsim.theory.averaged_noise import AveragedNoise, Kind
from fedsim.theory.turnout import Law


@dataclass(frozen=True)
class SummedNoise:
    """Every silo's budget, and how the noise that is common to them enters a round's mean.

    Args:
        own: each silo's own calibration.
        mechanism: of the sums.
        pool: the silos.
        law: of M_r, none below `pool.min_silos`: a sum of fewer is not released.
        by_silos: variance that each silo in a sum adds to it, in the unit of (ratio z reach clip)^2.
        by_aggregators: variance that is added whoever is in it.
    """

    own: AveragedNoise
    mechanism: SumMechanism
    pool: Pool
    law: Law
    by_silos: float
    by_aggregators: float

    def variance(self, clip: float, kind: Kind, plan: Sequence[Kind]) -> float:
        """Per coordinate of the mean: (z ratio D clip u N)^2 E[(by_silos M_r + by_aggregators) / M_r^2].

        D is the sensitivity of a contribution in units of the clip: 2 and what rounding adds.

        Args:
            clip: bound on a record's term of this kind.
            kind: the release in question, one of `plan`.
            plan: all kinds of releases of the run.
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
