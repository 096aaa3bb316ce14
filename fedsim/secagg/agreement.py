"""What the parties of secure aggregation agree on: the noise, each silo's clip, and what reports are for.

A silo's own share of the noise protects it only beside those of the others, so that each must know that the
others add as much. Reports are sealed for a run of the name that all silos of a sum give it
(`fedsim.secagg.reports`): those of silos that were told another plan, noise, pool or roster do not open
beside this silo's, and no sum is made of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fedsim.common.errors import Refused
from fedsim.common.serialise import canonical
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Plan, Terms
from fedsim.protocol.pool import Pool, Share
from fedsim.protocol.statistics import size_of
from fedsim.secagg.reports import Form, ReportContext
from fedsim.wire.messages import Offer


@dataclass(frozen=True)
class ReportContexts:
    """The contexts of a run of sums."""

    offer: Offer  # with `pooled`, to any of the run's silos
    plan: Plan
    mechanism: SumMechanism
    dimension: int  # d, of the model
    features: int  # of a record

    @cached_property
    def run(self) -> str:
        """How reports call the run."""
        return agreement(self.offer, self.plan)

    def of(self, round_index: int, start: str) -> ReportContext:
        """A round's context; `start` is that of the shuffler's mark. Refused if the offer is not of sums."""
        if self.offer.pooled is None:
            raise Refused("the run has no secure aggregation")
        return ReportContext(self.run, round_index, self.offer.pooled.roster, self.form(round_index), start)

    def form(self, round_index: int) -> Form:
        """What the numbers of a round's reports are."""
        sizes, z = (self.dimension, self.features), self.offer.noise_multiplier or 0.0
        size, scales = aggregated(self.mechanism, self.plan, round_index, z, *sizes)
        return Form(self.mechanism.transport, size, scales)


def aggregated(
    mechanism: SumMechanism, plan: Plan, round_index: int, z: float, dimension: int, features: int
) -> tuple[int, tuple[float, ...]]:
    """How many numbers each query's sum in a round holds, and the scales of the noise that each aggregator
    adds to them, in steps; 0 where silos add theirs. Refused if the round's sums are of several sizes.

    The multiplier `z` is common to all silos, `dimension` the model's, and `features` are of a record.
    """
    queries = [query for ask in plan.rounds[round_index] for query in ask.queries]
    sizes = {size_of(query, dimension, features) for query in queries}
    if len(sizes) > 1:
        raise Refused(f"round {round_index} has sums of {sorted(sizes)} numbers; they must be of one size")
    (size,) = sizes
    return size, tuple(
        mechanism.aggregators_noise(query.noise_ratio * z, size, plan.spread(query)) for query in queries
    )


def agreement(offer: Offer, plan: Plan) -> str:
    """SHA-256 of all that is in an offer but what is the silo's own alone, and of the plan that it comes to.

    The plan is what each silo's own installation makes of the offer: noise ratios are in it alone. The digest
    has 64 hexadecimal digits.
    """
    told = offer.model_dump(mode="json", exclude={"silo", "rounds", "epsilon", "delta", "head"})
    if offer.pooled is not None:
        told["pooled"] = offer.pooled.model_dump(mode="json", exclude={"clip"})
    return hashlib.sha256(b"fedsim agreement 1\n" + canonical([told, plan.digest]).encode()).hexdigest()


_HALVINGS = 50


@dataclass(frozen=True)
class Sums:
    """The secure aggregation of a run, before the noise is known."""

    mechanism: SumMechanism
    pool: Pool

    def agreed(self, plan: Plan, terms: Sequence[Terms], given: float | None = None) -> list[Terms]:
        """The terms of all silos with the common noise and each one's clip.

        The silos with the largest epsilon set the noise, at the whole clip, and every other silo whose budget
        asks for more noise than that takes a smaller clip; where the smallest does not do, the noise grows.
        Refused if a silo cannot afford the plan. Terms are in canonical order; where the scenario has the
        common noise, it is `given`, and clips are whole.
        """
        rounds = tuple(own.rounds if isinstance(own.rounds, range) else tuple(own.rounds) for own in terms)
        budgets = tuple(Budget(own.n, own.epsilon, own.delta) for own in terms)
        clips: Sequence[float] = [1.0] * len(terms)
        if given is None:
            given, clips = _common(self, plan, rounds, budgets)
        return [
            replace(own, noise_multiplier=given, share=Share(self.pool, i, clip))
            for i, (own, clip) in enumerate(zip(terms, clips, strict=True))
        ]


@lru_cache(maxsize=64)  # a host of silos and the next trial ask again
def _common(
    sums: Sums, plan: Plan, rounds: tuple[Sequence[int], ...], budgets: tuple[Budget, ...]
) -> tuple[float, tuple[float, ...]]:
    mechanism = sums.mechanism
    parts = [sums.pool.heaviest(i, plan.batches(own)) for i, own in enumerate(rounds)]
    found: dict[int, float] = {}
    censuses = [plan.census(own) for own in rounds]
    for census in set(censuses):
        group = [i for i, other in enumerate(censuses) if other == census]
        bounded = mechanism.together(census, plan.unit.silos_per_person)
        alike = [budgets[i] for i in group]
        multipliers = mechanism.noise_multipliers(bounded, alike, LIMITS.max_noise_multiplier)
        found.update(zip(group, multipliers, strict=True))
    needed = [found[i] for i in range(len(budgets))]  # each silo's own multiplier, z_i
    common = [mechanism.common(z, part) for z, part in zip(needed, parts, strict=True)]
    loosest = max(budget.epsilon for budget in budgets)
    z = max(own for own, budget in zip(common, budgets, strict=True) if budget.epsilon == loosest)
    z = max(z, *(mechanism.common(own, 0.0) for own in needed))
    return z, tuple(_clip(mechanism, z, own, part) for own, part in zip(needed, parts, strict=True))


def _clip(mechanism: SumMechanism, z: float, needed: float, part: float) -> float:
    """The largest kappa at which a silo of weight `part` has its multiplier."""
    if mechanism.effective(z, part) >= needed:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mechanism.effective(z, middle * part) >= needed else (low, middle)
    if not low:
        raise Refused(f"a budget asks for noise multiplier {needed:.6g}, and no clip gives that")
    return low
