"""What a guarantee is worth to a person who has several records (unit record), or is in several silos.

* *Several records* (unit record). By group privacy a person with s records is covered for a swap with
  somebody who has as many: at s mu, mu and delta being the largest of the silos, where plans are one Gaussian
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
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from fedsim.common.serialise import finite
from fedsim.privacy import convert
from fedsim.privacy.cost import Composition, compose, joint
from fedsim.privacy.grid import GridGaussian
from fedsim.protocol.plan import Admitted, Census
from fedsim.protocol.unit import RECORD
from fedsim.report.summary import PersonRow, Persons
from fedsim.scenario.evaluation import evaluation_of
from fedsim.scenario.resolve import Resolved

RECORDS, SILOS = (2, 5, 10, 50), (1, 2, 3)
_MOST_PAIRS = 400  # different sampled releases that are composed; more are priced as if they were not sampled
_SHARE = 1e-3  # of delta, for the distance of exact noise from Gaussian noise
SWAP = "for a swap with somebody who has as many records only; unit person protects all of them"
IN_SILOS = "of the silos that cost most; what a person costs who is in one silo stands in that silo's row"

Cell = dict[str, float | None]


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
        evaluated: the silos' of its evaluation.
        deployed: whether silos drew exact noise.
        most: the most records that a person has in a silo, which only a simulation can count.
    """
    if not resolved.mechanism.private or not admitted:
        return {}
    found = _Silos.of(resolved, admitted, deployed)
    if evaluated:
        found = found.larger(_Silos.of(evaluation_of(resolved), evaluated, deployed))
    if resolved.scenario.privacy.unit != RECORD:
        ks = sorted({*(k for k in SILOS if k < len(admitted)), len(admitted)})
        rows = [PersonRow(silos=k, **found.in_silos(k, resolved.mechanism.sums_only)) for k in ks]
        return {"persons": Persons(note=IN_SILOS, rows=rows)}
    seen = {} if most is None else {"most_records": most}
    rows = [PersonRow(records=s, **found.of_records(s)) for s in sorted({*RECORDS, *seen.values()})]
    return {"persons": Persons(note=SWAP, rows=rows, **seen)}


class _Silos(NamedTuple):
    """Costs of the silos."""

    epsilons: list[float]
    deltas: list[float]
    plans: list[Composition]  # at multiplier 1
    apart: list[float]  # total variation of the noise from Gaussian noise
    gaussian: bool  # whether each plan is one Gaussian release, of mu = its weight

    @classmethod
    def of(cls, resolved: Resolved, admitted: Sequence[Admitted], deployed: bool) -> _Silos:
        """The costs of an admitted plan."""
        plan, problem, mechanism = resolved.trace.plan, resolved.problem, resolved.mechanism
        if deployed and not mechanism.sums_only:
            mechanism = GridGaussian(plan.extent(problem.dimension, problem.num_features))
        distance: Callable[[Census, float], float] = getattr(mechanism, "distance", lambda *_: 0.0)
        census, composed = cache(plan.census), cache(compose)
        plans, apart = [], []
        for silo in admitted:
            rounds, z = silo.terms.rounds, silo.noise_multiplier
            own = census(rounds if isinstance(rounds, range) else tuple(rounds))
            one = composed(own, silo.terms.n)
            plans.append(joint([(one, z)]) if z > 0 else Composition(0.0 if one.silent else math.inf, ()))
            apart.append(distance(own, z) if z > 0 else 0.0)
        return cls(
            [silo.epsilon_guaranteed for silo in admitted],
            [silo.terms.delta for silo in admitted],
            plans,
            apart,
            mechanism.squares_add and not any(one.sampled for one in plans),
        )

    def larger(self, other: _Silos) -> _Silos:
        """Of each silo the larger costs; of plans that are not Gaussian none is the larger."""
        both = self.gaussian and other.gaussian
        pairs = zip(self.plans, other.plans, strict=True)
        mu = [Composition(max(a.weight, b.weight), ()) for a, b in pairs] if both else []
        costs = [list(map(max, *each)) for each in zip(self[:2], other[:2], strict=True)]
        return _Silos(costs[0], costs[1], mu, list(map(max, self.apart, other.apart)), both)

    def of_records(self, count: int) -> Cell:
        """Of a person with so many records in one silo."""
        if not self.gaussian:
            return _group(max(self.epsilons), max(self.deltas), count)
        mu = max(plan.weight for plan in self.plans)
        return self._priced(Composition(count * mu, ()), max(self.apart))

    def in_silos(self, k: int, summed: bool) -> Cell:
        """Of a person in k silos."""
        apart = sum(sorted(self.apart)[-k:])
        if self.gaussian:
            mus = sorted(plan.weight for plan in self.plans)[-k:]
            return self._priced(Composition(sum(mus) if summed else math.hypot(*mus), ()), apart)
        if summed:
            return _group(max(self.epsilons), max(self.deltas), k)
        if self.plans:
            costliest = sorted(range(len(self.plans)), key=lambda i: -self.epsilons[i])[:k]
            return self._priced(joint([(self.plans[i], 1.0) for i in costliest]), apart)
        epsilon, delta = (sum(sorted(each)[-k:]) for each in (self.epsilons, self.deltas))
        return _cell(epsilon if delta < 1 else math.inf, delta)

    def _priced(self, plan: Composition, apart: float) -> Cell:
        """At the largest delta, of which exact noise leaves a little less."""
        delta = max(self.deltas)
        left = (1 - _SHARE) * delta if apart else delta
        if len(plan.sampled) > _MOST_PAIRS:
            mu, _, left = plan.gaussian_bound(left)
            plan = Composition(mu, ())
        epsilon = plan.epsilon(1.0, left)
        if apart and math.log(apart) + np.logaddexp(0.0, epsilon) > math.log(_SHARE * delta):
            epsilon = math.inf
        return _cell(epsilon, delta)


def _cell(epsilon: float, delta: float) -> Cell:
    return {"epsilon": finite(epsilon), "delta": delta if epsilon < math.inf else None}


def _group(epsilon: float, delta: float, count: int) -> Cell:
    found = convert.group(epsilon, delta, count)
    return {"epsilon": None, "delta": None} if found is None else _cell(*found)
