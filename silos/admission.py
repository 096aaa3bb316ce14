"""Before round 0: each silo prices the plan and sets its own noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf

from fedsim.privacy import cost
from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.protocol.errors import Refused
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Census, Plan
from fedsim.protocol.terms import Admitted, Terms


def admit(plan: Plan, silos: Sequence[Terms], limits: Limits) -> list[Admitted]:
    """The smallest noise multiplier of each silo whose cost is within that silo's budget.

    Raises:
        Refused: a silo cannot afford the plan at the largest noise it allows.
    """
    by_census: dict[Census, list[int]] = defaultdict(list)
    censuses: dict[tuple[int, ...], Census] = {}
    for position, terms in enumerate(silos):
        own = tuple(terms.rounds)
        if own not in censuses:
            censuses[own] = plan.census(own)
        by_census[censuses[own]].append(position)
    admitted: dict[int, Admitted] = {}
    for census, positions in by_census.items():
        group = [silos[position] for position in positions]
        multipliers = _calibrated(census, group, limits)
        for position, terms, z in zip(positions, group, multipliers, strict=True):
            spent = inf if terms.epsilon == inf else cost.epsilon(census, terms.n, z, terms.delta)
            releases = plan.num_queries(terms.rounds)
            admitted[position] = Admitted(terms, z, spent, releases)
    return [admitted[position] for position in range(len(silos))]


def _calibrated(census: Census, group: Sequence[Terms], limits: Limits) -> list[float]:
    if all(terms.epsilon == inf for terms in group):
        return [0.0] * len(group)
    budgets = [Budget(terms.n, terms.epsilon, terms.delta) for terms in group]
    try:
        return noise_multipliers(census, budgets, limits.max_noise_multiplier)
    except Refused as refusal:
        raise Refused(f"silo {_unable(census, group, limits)!r}: {refusal}") from None


def _unable(census: Census, group: Sequence[Terms], limits: Limits) -> str:
    """The first silo that cannot carry the plan even with the largest noise that it allows."""
    for terms in group:
        try:
            least = cost.epsilon(census, terms.n, limits.max_noise_multiplier, terms.delta)
        except Refused:
            return terms.name
        if least > terms.epsilon:
            return terms.name
    return "?"


def spent(plan: Plan, admitted: Admitted, debited: Iterable[int]) -> float:
    """Epsilon of the rounds paid for; valid as a guarantee if participation did not depend on answers."""
    if admitted.epsilon_guaranteed == inf:
        return inf
    rounds = sorted(debited)
    if rounds == list(admitted.terms.rounds):
        return admitted.epsilon_guaranteed
    terms = admitted.terms
    return cost.epsilon(plan.census(rounds), terms.n, admitted.noise_multiplier, terms.delta)
