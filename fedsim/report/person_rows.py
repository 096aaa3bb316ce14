"""What a guarantee is worth to a person who has several records (unit record), or is in several silos.

* *Several records* (unit record). By group privacy a person with s records is covered for a swap with
  a person of as many: at s mu, mu and delta being the largest of the silos, where plans are one Gaussian
  release (exactly, as `convert.group_gaussian`); else by `convert.group` of the largest epsilon and delta.
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
from typing import NamedTuple

from fedsim.common.serialise import finite
from fedsim.privacy import convert
from fedsim.privacy.cost import Composition, compose, joint
from fedsim.privacy.grid import GridGaussian
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import GAUSSIAN
from fedsim.protocol.batch import FULL
from fedsim.protocol.plan import Admitted, Release
from fedsim.protocol.unit import RECORD
from fedsim.report.summary import PersonRow, Persons
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved

RECORDS, SILOS = (2, 5, 10, 50), (1, 2, 3)
SWAP = "for a swap with a person of as many records only; unit person protects all of them"
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
    if not resolved.mechanism.private or not admitted:
        return {}
    silos = _Silos.of(resolved, admitted, evaluated, deployed)
    if resolved.scenario.privacy.unit != RECORD:
        ks = sorted({*(k for k in SILOS if k < len(admitted)), len(admitted)})
        return {"persons": Persons(note=IN_SILOS, rows=[silos.row(silos.together(k), silos=k) for k in ks])}
    seen = {} if most is None else {"most_records": most}
    counts = sorted({*RECORDS, *seen.values()})
    rows = [silos.row(silos.replaced(s), records=s) for s in counts]
    return {"persons": Persons(note=SWAP, rows=rows, **seen)}


Cost = tuple[float, float]


class _Silos(NamedTuple):
    """Costs of silos; `plans` at multiplier 1, of a run and where it has one of its evaluation."""

    mechanism: Mechanism
    epsilons: list[float]
    deltas: list[float]
    plans: list[tuple[Composition, ...]]

    @classmethod
    def of(
        cls, run: Resolved, admitted: Sequence[Admitted], evaluated: Sequence[Admitted], deployed: bool
    ) -> _Silos:
        """The costs that silos admitted."""
        plan, problem, mechanism = run.trace.plan, run.problem, run.mechanism
        if deployed and mechanism == GAUSSIAN:
            mechanism = GridGaussian(plan.extent(problem.dimension, problem.num_features))
        parts = [(run, admitted), *([(evaluation_of(run), evaluated)] if evaluated else [])]
        silos = list(zip(*(own for _, own in parts), strict=True))
        return cls(
            mechanism,
            [max(each.epsilon_guaranteed for each in own) for own in silos],
            [max(each.terms.delta for each in own) for own in silos],
            list(zip(*(_plans(part, own) for part, own in parts), strict=True)),
        )

    @property
    def mus(self) -> list[float]:
        """Of each silo, the smallest first; none where some plan is no Gaussian release."""
        gaussian = not any(plan.sampled for own in self.plans for plan in own)
        found = sorted(max(plan.weight for plan in own) for own in self.plans)
        return found if gaussian and self.mechanism.squares_add else []

    def replaced(self, count: int) -> Cost:
        """The cost of so many records replaced in one silo."""
        return self._of(count * self.mus[-1]) if self.mus else self._group(count)

    def together(self, k: int) -> Cost:
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

    def row(self, cost: Cost, **of: int) -> PersonRow:
        """A cost as a row; one without a finite epsilon, or whose delta reaches 1, is no guarantee."""
        epsilon, delta = cost if cost[1] < 1 else (math.inf, 1.0)
        return PersonRow(**of, epsilon=finite(epsilon), delta=delta if epsilon < math.inf else None)

    def _of(self, mu: float) -> Cost:
        """The cost of one Gaussian release, at the largest delta."""
        delta = max(self.deltas)
        if mu == math.inf:
            return mu, delta
        return self.mechanism.epsilons(((Release(FULL, mu), 1),), [(2, 1.0, delta)])[0], delta

    def _group(self, count: int) -> Cost:
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
        plan = composed(census(rounds if isinstance(rounds, range) else tuple(rounds)), silo.terms.n)
        plans.append(joint([(plan, z)]) if z > 0 else Composition(0.0 if plan.silent else math.inf, ()))
    return plans
