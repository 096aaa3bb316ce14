"""The interface of mechanisms: noise, its price, and the guarantee that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from fedsim.privacy.calibrate import Budget
from fedsim.privacy.cost import together
from fedsim.protocol.facts import Facts, Told, check_gate
from fedsim.protocol.plan import Census, Plan, QueryShape

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.privacy.exponential import Scores

Noise = Callable[[], "Tensor"]
FLOATING_POINT = (
    "Noise is Gaussian in floating point: the low-order bits of an answer are not covered by the guarantee"
)
"""The line of a report for noise that is not exact."""


class About(NamedTuple):
    """What is published of a query's records where less than a record is protected."""

    longest: float  # the largest |x|; infinity for a network
    reach: float  # of a table of costs, infinity without
    outputs: int  # scores of a record


class Mechanism(Protocol):
    """Adds noise to a silo's answers and prices it; frozen and hashable.

    z is a silo's base noise multiplier: sigma over L2 sensitivity of a release of weight 1. A clipped sum
    has sensitivity spread x clip under replace-one, by its statistic's spread. A class's first docstring line
    is what `fedsim list` shows.

    Attributes:
        name: the word in a scenario.
        private: whether anything is guaranteed; if not, every price is infinite and no budget can be kept.
        squares_add: whether an unsampled release of weight a costs what a Gaussian one of mu = a / z does, so
            that mu^2 adds over runs too; else only (epsilon, delta) of whole plans do.
        sums_only: secure aggregation: the server learns sums of answers and no single silo's answer.
        simulated: whether no deployed silo has it.
        floating: whether its noise is drawn as floating-point numbers, by which it is cheap.
        of_groups: whether its guarantee is about a record's group alone, whatever the unit.
        fields: of `privacy` in a scenario, those that are its own; whether each is required.
        guarantee: what is guaranteed to a record, in one sentence (other units: `fedsim.privacy.unit_words`).
        notices: warnings that a report shows before any number.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    squares_add: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    simulated: ClassVar[bool] = False
    floating: ClassVar[bool] = False
    of_groups: ClassVar[bool] = False
    fields: ClassVar[dict[str, bool]] = {}
    guarantee: ClassVar[str]
    notices: ClassVar[tuple[str, ...]] = ()

    def __hash__(self) -> int:
        return super().__hash__()

    @property
    def facts(self) -> dict[str, Told]:
        """What `fedsim.protocol.clashes` is to know of it."""
        sums: Told = self.name if self.sums_only else False
        return {
            "a simulation's mechanism": self.simulated,
            "protection of groups alone": self.of_groups,
            "secure aggregation": sums,
            "shuffled messages": False,
        }

    def applied(self, clip: float | Tensor) -> float | Tensor | None:
        """The clip that terms are shortened to; None for none."""
        return clip

    def moved(
        self, query: QueryShape, spread: float, clip: float | Tensor, about: Callable[[], About]
    ) -> float | Tensor:
        """The distance that a release's noise covers, over the spread."""
        return clip

    def choose(self, scores: Sequence[Scores], epsilons: Sequence[float], noise: Noise) -> list[int]:
        """An index for each silo, by the exponential mechanism."""
        from scipy.special import ndtr  # loaded where a choice is asked for

        from fedsim.privacy.exponential import chosen

        uniform = ndtr(noise().double().flatten().numpy())
        return [chosen(*each) for each in zip(scores, epsilons, uniform, strict=True)]

    def fill(self, streams: Iterable[np.random.Generator], rows: Iterable[np.ndarray]) -> None:
        """Draw noise of scale 1 into each row, float64, from the stream of the silo that it is for."""

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

    def together(self, census: Census, silos: int) -> Census:
        """What a unit pays that is in so many silos, each with noise of its own, that all answer `census`."""
        return together(census, silos)

    def distance(self, census: Census, z: float) -> float:
        """Total variation between the noise of a whole census and that which its price is for."""
        return 0.0

    def noise_multipliers(self, census: Census, budgets: Sequence[Budget], limit: float) -> list[float]:
        """The smallest z, at most `limit`, at which the composition `census` is within each budget. Refused
        if even `limit` costs more than a budget.
        """

    def epsilons(self, census: Census, cases: Sequence[tuple[int, float, float]]) -> list[float]:
        """Epsilon of the composition `census` per silo of (n, z, delta): transcripts are (epsilon, delta)-DP.
        Refused if the census cannot be answered on n records.
        """

    def accountant(self, samplers: Iterable[str]) -> str:
        """A description of the accountant for a plan with these samplers."""


def check_unit(plan: Plan, mechanism: Mechanism, public: Told = False) -> None:
    """Refuse a plan whose unit has no term, or no price with the mechanism; `public` is a silo that is."""
    check_gate(Facts(plan, {**mechanism.facts, "public silo": public}))
