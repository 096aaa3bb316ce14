"""The interface of mechanisms: noise, its price, and the guarantee that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedsim.common.errors import Refused
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import Poisson
from fedsim.protocol.plan import Census, Plan
from fedsim.protocol.statistics import BY_GROUP, OPPOSITE, statistic
from fedsim.protocol.unit import RECORD, Person, Rule

if TYPE_CHECKING:
    from torch import Tensor

Noise = Callable[[], "Tensor"]


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
        attribute: whether noise covers a change of a record's group alone (`fedsim.privacy.attribute`).
        guarantee: what is guaranteed to a record, in one sentence (other units: `fedsim.report.unit_words`).
        notices: warnings that a report shows before any number.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    clips: ClassVar[bool] = True
    squares_add: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    one_replaced: ClassVar[bool] = False
    attribute: ClassVar[bool] = False
    guarantee: ClassVar[str]
    notices: ClassVar[tuple[str, ...]] = ()

    def __hash__(self) -> int:
        return super().__hash__()

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


def check_unit(plan: Plan, mechanism: Mechanism) -> None:
    """Refuse a plan whose unit has no term, or no price with the mechanism."""
    rules = _of_records if plan.unit == RECORD else _of_persons
    if mechanism.attribute:
        others = sorted({query.statistic for query in plan.queries} - set(BY_GROUP))
        sampled = ["batches drawn at random"] if plan.sampled else []
        hint = " and ".join([*others, *sampled, *([] if plan.unit == RECORD else [plan.unit.name])])
        if hint:
            raise Refused(f"it has no price for {hint}; use fair_minibatch_sgd, full batches and unit record")
    for refused, why in rules(plan, mechanism):
        if refused:
            raise Refused(why)


def _of_records(plan: Plan, mechanism: Mechanism) -> Iterator[tuple[bool, str]]:
    names = {query.statistic for query in plan.queries}
    yield "contributions" in names, "contributions are records of persons; use unit person"
    yield from _replaced(plan)


def _replaced(plan: Plan) -> Iterator[tuple[bool, str]]:
    """A Poisson batch may be without the unit: that moves a sum by a term, which is half of what its
    replacement is priced at only where terms may be opposite. A unit that is added is that term.
    """
    for ask in plan.asks:
        for query in ask.queries if isinstance(ask.batch, Poisson) else ():
            short = statistic(query.statistic).spread_of(query.options) < OPPOSITE
            hint = "it has no price for such batches; use full or fresh ones"
            yield short, f"{query.statistic} on {ask.batch}: {hint}"


def _of_persons(plan: Plan, mechanism: Mechanism) -> Iterator[tuple[bool, str]]:
    unit, names = plan.unit, {query.statistic for query in plan.queries}
    assert isinstance(unit, Person)
    if not unit.one_sided:
        yield from _replaced(plan)
    several, sums = unit.silos_per_person > 1, mechanism.sums_only
    hint = "the plan releases no contributions; give a number"
    yield isinstance(unit.h, Rule) and "contributions" not in names, f"h is to be chosen, and {hint}"
    for name in sorted(names & {"minimiser", "label_projection"}):
        hint = "it is no function of clipped sums of a person's terms; use bound limit or smooth"
        yield not unit.weighted, f"{name} with bound {unit.bound}: {hint}"
        hint = "which add_remove keeps private; use replace_person"
        yield unit.one_sided, f"{name} divides by the number of persons, {hint}"
    hint = "numbers of records are public, and sums hide them; use replace_person"
    yield sums and unit.relation == "replace_values", f"relation replace_values with sums: {hint}"
    for sampler in sorted({ask.batch.sampler for ask in plan.asks} - {"full", "poisson"}):
        hint = "one person more shifts every draw; use full or poisson"
        yield unit.one_sided, f"relation add_remove with {sampler} batches: {hint}"
    asked = "relation add_remove" if unit.one_sided else "silos_per_person above 1"
    hint = "it has a price for a person replaced in one silo; use gaussian or summed_gaussian"
    odd = mechanism.one_replaced and (unit.one_sided or several)
    yield odd, f"{asked} with mechanism {mechanism.name}: {hint}"
    hint = "a person may be in several terms of one sum; use full or fresh batches, or mechanism gaussian"
    mixed = several and sums and plan.sampled
    yield mixed, f"silos_per_person above 1 with batches drawn at random and sums: {hint}"
