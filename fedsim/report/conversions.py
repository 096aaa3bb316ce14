"""What a guarantee is worth to a person who has several records (unit record), or is in several silos.

* *Several records* (unit record). By group privacy a person with s records is covered for a swap with
  a person of as many: at s mu, mu and delta being the largest of the silos, where plans are one Gaussian
  release (exactly, as `convert.group_gaussian`); where they are sampled, and silos of few kinds, by
  `groups.epsilon`; else by `convert.group` of the largest epsilon and delta.
* *Several silos* (unit person). Of the k silos of the largest cost: mu^2 adds, at the largest delta, where
  plans are one Gaussian release; sampled releases are composed with all others (`cost.joint`). Silos that are
  summed under one noise move the sum together, so that mu adds and not its square, or by `convert.group`.
  What is left, sampled plans with an evaluation, is basic composition.

Of training and evaluation the larger cost counts: a unit is in one of them (`fedsim.scenario.evaluation`),
and of s records, r in one part, (r mu)^2 + ((s - r) mu')^2 is largest at an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer

from fedsim.privacy import convert
from fedsim.privacy.convert import Guarantee
from fedsim.privacy.cost import Composition, as_gaussian, compose, joint
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import GAUSSIAN
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Admitted, Release
from fedsim.protocol.unit import RECORD, Protects
from fedsim.report.summary import Part, PersonRow, Persons
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved

RECORDS, SILOS = (2, 5, 10, 50), (1, 2, 3)
SWAP: dict[Protects, str] = {
    "record": "for a swap with a person of as many records only; unit person protects all of them",
    "label": "for other labels of as many records only, whose features are not protected",
    "group": "for other groups of as many records only, whose features and labels are published",
}
_OF_PERSONS = {"record": "", "label": "the labels of ", "group": "the groups of "}
IN_SILOS = "of the silos that cost most; what a person costs who is in one silo stands in that silo's row"


def persons(
    resolved: Resolved,
    admitted: Sequence[Admitted],
    evaluated: Sequence[Admitted] = (),
    deployed: bool = False,
    most: int | None = None,
) -> dict[str, Persons]:
    """{"persons": what the guarantee is worth to one}; {} where nothing is guaranteed.

    Args:
        admitted: every silo's admission of the run.
        evaluated: the silos' of its evaluation, in the same order.
        deployed: whether silos drew exact noise.
        most: the most records that a person has in a silo, which only a simulation can count.
    """
    admitted = [each for each in admitted if not each.terms.public]
    if not resolved.mechanism.private or not admitted:
        return {}
    silos = _Silos.of(resolved, admitted, evaluated, deployed)
    if resolved.scenario.privacy.unit != RECORD:
        hidden = "; labels alone are protected" if resolved.protects == "label" else ""
        ks = sorted({*(k for k in SILOS if k < len(admitted)), len(admitted)})
        rows = [silos.row(silos.together(k), silos=k) for k in ks]
        return {"persons": Persons(note=IN_SILOS + hidden, rows=rows)}
    seen = {} if most is None else {"most_records": most}
    counts = sorted({*RECORDS, *seen.values()})
    rows = [silos.row(silos.replaced(s), records=s) for s in counts]
    return {"persons": Persons(note=SWAP[resolved.protects], rows=rows, **seen)}


GROUPS = (2, 5, 10)
EXACT, GENERIC = "exact Gaussian, k mu", "(k epsilon, k e^((k-1) epsilon) delta)"
SAMPLED = "releases for k records, composed"
_KINDS = 8  # of silos, whose sampled plans are composed for groups one by one
Plain = Annotated[Guarantee, PlainSerializer(Guarantee._asdict)]  # {"epsilon": ..., "delta": ...} in JSON


class GroupPrivacy(Part):
    """For replacing so many records; None where nothing is guaranteed (`NO_DELTA`)."""

    records: int
    guarantee: Plain | None


class SiloConversions(Part):
    """Group privacy, user level, and the record-level budget that gives the silo's budget at user level."""

    name: str
    n: int
    group_rule: str
    group: list[GroupPrivacy]
    user_level: Plain | None
    record_level_for_user_level_budget: Plain | None


class Conversions(Part):
    """`central` is of one unit, in as many silos as one may be in; `silos` of records, where they are it."""

    central_of: str
    central: Plain | None
    silos: list[SiloConversions]


def conversions(resolved: Resolved, silos: Sequence[Admitted]) -> Conversions:
    """The guarantees of silos that admitted the run's plan."""
    unit, silos = resolved.scenario.privacy.unit, [each for each in silos if not each.terms.public]
    if unit != RECORD:
        most = min(unit.silos_per_person, len(silos))
        found = _guarantee(_Silos.of(resolved, silos, (), False).together(most))
        of = f"{_OF_PERSONS[resolved.protects]}one person, who is in {most} silo{'s' * (most > 1)} at most"
        return Conversions(central_of=of, central=found, silos=[])
    of = resolved.words.one
    pairs = [(silo.epsilon_guaranteed, silo.terms.delta) for silo in silos]
    return Conversions(
        central_of=of, central=convert.central(pairs), silos=[_converted(resolved, each) for each in silos]
    )


def _converted(resolved: Resolved, silo: Admitted) -> SiloConversions:
    terms, own = silo.terms, _Silos.of(resolved, [silo], (), False)
    recipe = convert.hybrid(terms.epsilon, terms.delta, terms.n) if terms.epsilon <= 1 else None
    groups = [(k, _guarantee(own.replaced(k))) for k in (*GROUPS, terms.n) if k <= terms.n]
    return SiloConversions(
        name=terms.name,
        n=terms.n,
        group_rule=EXACT if own.mus else SAMPLED if own.kinds else GENERIC,
        group=[GroupPrivacy(records=k, guarantee=found) for k, found in groups[:-1]],
        user_level=groups[-1][1],
        record_level_for_user_level_budget=recipe,
    )


EpsilonDelta = tuple[float, float]
NO_DELTA = 0.1
"""The delta from which on a guarantee to a person is none: it may give one person in ten away."""


def _guarantee(cost: EpsilonDelta) -> Guarantee | None:
    return Guarantee(*cost) if cost[0] < math.inf and cost[1] < NO_DELTA else None


class _Silos(NamedTuple):
    """Costs of silos; `plans` at multiplier 1, of a run and where it has one of its evaluation."""

    mechanism: Mechanism
    epsilons: list[float]
    deltas: list[float]
    plans: list[tuple[Composition, ...]]
    sizes: list[int]

    @classmethod
    def of(
        cls, run: Resolved, admitted: Sequence[Admitted], evaluated: Sequence[Admitted], deployed: bool
    ) -> _Silos:
        plan, problem, mechanism = run.trace.plan, run.problem, run.mechanism
        if deployed and mechanism == GAUSSIAN:
            from fedsim.privacy.grid import GridGaussian

            mechanism = GridGaussian(plan.extent(problem.dimension, problem.num_features))
        parts = [(run, admitted), *([(evaluation_of(run), evaluated)] if evaluated else [])]
        silos = list(zip(*(own for _, own in parts), strict=True))
        epsilons = [max(each.epsilon_guaranteed for each in own) for own in silos]
        deltas = [max(each.terms.delta for each in own) for own in silos]
        plans = zip(*(_plans(part, own) for part, own in parts), strict=True)
        return cls(mechanism, epsilons, deltas, list(plans), [each.terms.n for each in admitted])

    @property
    def mus(self) -> list[float]:
        """Of each silo, the smallest first; none where some plan is no Gaussian release."""
        gaussian = not any(plan.sampled for own in self.plans for plan in own)
        found = sorted(max(plan.weight for plan in own) for own in self.plans)
        return found if gaussian and self.mechanism.squares_add else []

    @property
    def kinds(self) -> set[tuple[Composition, int]]:
        """The silos that differ, by plan and size; none where their groups are not composed."""
        found = {(plan, n) for (plan, *_), n in zip(self.plans, self.sizes, strict=True)}
        few = self.mechanism == GAUSSIAN and len(self.plans[0]) == 1 and len(found) <= _KINDS
        return found if few and all(math.isfinite(plan.weight) for plan, _ in found) else set()

    def replaced(self, count: int) -> EpsilonDelta:
        """The cost of so many records replaced in one silo."""
        if self.mus:
            return self._of(count * self.mus[-1])
        from fedsim.privacy import groups  # of sampled plans

        delta = max(self.deltas)
        found = max((groups.epsilon(*kind, count, delta) for kind in self.kinds), default=math.inf)
        return (found, delta) if found < math.inf else self._group(count)

    def together(self, k: int) -> EpsilonDelta:
        """The cost of one person's data in k silos."""
        if mus := self.mus[-k:]:
            return self._of(sum(mus) if self.mechanism.sums_only else math.hypot(*mus))
        if self.mechanism.sums_only:
            return self._group(k)
        if self.mechanism == GAUSSIAN and len(self.plans[0]) == 1:
            delta = max(self.deltas)  # at which each silo's cost is compared, too
            costliest = sorted((plan for (plan,) in self.plans), key=lambda plan: -_epsilon(plan, delta))[:k]
            return _epsilon(joint([(plan, 1.0) for plan in costliest]), delta), delta
        return sum(sorted(self.epsilons)[-k:]), sum(sorted(self.deltas)[-k:])

    def row(self, cost: EpsilonDelta, **of: int) -> PersonRow:
        """A cost as a row; one without a finite epsilon, or of a delta of `NO_DELTA`, is no guarantee."""
        epsilon, delta = _guarantee(cost) or (None, None)
        return PersonRow(**of, epsilon=epsilon, delta=delta)

    def _of(self, mu: float) -> EpsilonDelta:
        """The cost of one Gaussian release, at the largest delta."""
        delta = max(self.deltas)
        if mu == math.inf:
            return mu, delta
        return self.mechanism.epsilons(((Release(FULL, mu), 1),), [(2, 1.0, delta)])[0], delta

    def _group(self, count: int) -> EpsilonDelta:
        return convert.group(max(self.epsilons), max(self.deltas), count) or (math.inf, 1.0)


@cache
def _epsilon(plan: Composition, delta: float) -> float:
    return plan.epsilon(1.0, delta)


def _plans(run: Resolved, admitted: Sequence[Admitted]) -> list[Composition]:
    """What silos release, each at multiplier 1."""
    census, composed = cache(run.trace.plan.census), cache(compose)
    plans = []
    for silo in admitted:
        rounds, z = silo.terms.rounds, silo.noise_multiplier
        plan = composed(
            as_gaussian(census(rounds if isinstance(rounds, range) else tuple(rounds))), silo.terms.n
        )
        plans.append(joint([(plan, z)]) if z > 0 else Composition(0.0 if plan.silent else math.inf, ()))
    return plans
