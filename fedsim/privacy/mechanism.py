"""The interface of mechanisms: noise, its price, and the guarantee that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedsim.common.errors import Refused
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.plan import Census, Plan

if TYPE_CHECKING:
    from torch import Tensor

    Noise = Callable[[], Tensor]


class Mechanism(Protocol):
    """Adds noise to a silo's answers and prices it; frozen and hashable.

    z is a silo's base noise multiplier: sigma over L2 sensitivity of a release of weight 1. A clipped sum
    has sensitivity spread x clip under replace-one, by its statistic's spread. A class's first docstring line
    is what `fedsim list` shows.

    Attributes:
        name: the word in a scenario.
        private: whether anything is guaranteed; if not, every price is infinite and no budget can be kept.
        clips: whether records' terms are shortened to their clip.
        squares_add: whether an unsampled release of weight a costs what a Gaussian one of mu = a / z does, so
            that mu^2 adds over runs too; else only (epsilon, delta) of whole plans do.
        sums_only: secure aggregation: the server learns sums of answers and no single silo's answer.
        one_replaced: whether it has a price only where a unit is replaced, and in one silo alone.
        guarantee: what is guaranteed to a record, in one sentence (other units: `fedsim.report.unit_words`).
        notices: warnings that a report shows before any number.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    clips: ClassVar[bool] = True
    squares_add: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    one_replaced: ClassVar[bool] = False
    guarantee: ClassVar[str]
    notices: ClassVar[tuple[str, ...]] = ()

    def __hash__(self) -> int:
        return super().__hash__()

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw noise of scale 1 into each row, float64, from the stream of the silo that it is for."""
        ...

    def perturb(
        self, total: Tensor, noise_ratio: float, z: Tensor, spread: float, clip: float | Tensor, noise: Noise
    ) -> None:
        """Add a release's noise to clipped sums, in place.

        Args:
            total: one sum a silo, (silos, d), float64.
            noise_ratio: the release's noise relative to z.
            z: base noise multipliers, (silos, 1).
            spread: of the statistic (`fedsim.protocol.statistics`).
            clip: of a record's term, a number or (silos, 1).
            noise: gives the release's rows of `fill`, (silos, d); called at most once. If it gives fewer rows
                than `total` has, they are tiled: runs that are computed together share their noise.
        """
        ...

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """The smallest z, at most `limit`, at which the composition `census` is within each budget.

        Raises:
            Refused: even `limit` costs more than a budget.
        """
        ...

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """Epsilon of the composition `census` per silo of (n, z, delta): transcripts are (epsilon, delta)-DP.

        Raises:
            Refused: the census cannot be answered on n records.
        """
        ...

    def accountant(self, samplers: Iterable[str]) -> str:
        """A description of the accountant for a plan with these samplers."""
        ...


def check_unit(plan: Plan, mechanism: Mechanism) -> None:
    """Refuse a plan whose unit has no term, or no price with the mechanism."""
    unit, several = plan.unit, plan.unit.silos_per_person > 1
    plan.check_unit(mechanism.sums_only)
    if mechanism.one_replaced and (unit.one_sided or several):
        asked = "relation add_remove" if unit.one_sided else "silos_per_person above 1"
        hint = "it has a price for a person replaced in one silo; use gaussian or summed_gaussian"
        raise Refused(f"{asked} with mechanism {mechanism.name}: {hint}")
    if several and mechanism.sums_only and plan.sampled:
        hint = "a person may be in several terms of one sum; use full or fresh batches, or mechanism gaussian"
        raise Refused(f"silos_per_person above 1 with batches drawn at random and sums: {hint}")
