"""Before round 0: each silo prices the plan, sets its own noise, and says what its account is to pay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, cast

from fedsim.common.errors import Refused
from fedsim.privacy.calibrate import Budget, over_budget
from fedsim.privacy.cost import as_gaussian, compose
from fedsim.privacy.mechanism import FLOATING_POINT, Mechanism, check_unit
from fedsim.privacy.rounding import shown_up
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.batch import Fresh, Part
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Admitted, Census, Plan, Release, Terms
from fedsim.protocol.statistics import Extent
from silos.vault.account import Cost, OnPart, Price, Stretch, up

if TYPE_CHECKING:
    from fedsim.privacy.sum_mechanism import SumMechanism

_Numbers = tuple[float, float, float, tuple[OnPart, ...]]  # of a round: those of a `Stretch`
_MARGIN = 1 + Fraction(1, 10**12)
"""Above the rounding errors of a weight, which are a few units in its last place."""


def admit(plan: Plan, silos: Sequence[Terms], mechanism: Mechanism, limits: Limits) -> list[Admitted]:
    """The noise multiplier of each silo and its true cost, which is within that silo's budget.

    A silo takes the smallest multiplier whose cost is, unless its terms give one. Where a unit is in k silos
    (`silos_per_person`), it is k such silos that cost at most the budget (`Mechanism.together`). The noise of
    secure aggregation is given, since it is common to the silos; each prices it relative to its own
    sensitivity. Refused if a silo cannot afford the plan, at the given noise or at the largest it allows, or
    has a budget that the mechanism cannot keep.
    """
    check_unit(plan, mechanism, next((repr(terms.name) for terms in silos if terms.public), False))
    for terms in silos:
        if not mechanism.private and terms.epsilon < inf:
            hint = f"mechanism {mechanism.name} cannot keep a budget of {terms.epsilon:g}"
            raise Refused(f"silo {terms.name!r}: {hint}")
    positions: dict[Census, list[int]] = defaultdict(list)
    priced: dict[Hashable, tuple[list[int], int]] = {}
    releases, admitted = [], dict[int, Admitted]()
    for position, terms in enumerate(silos):
        own = terms.rounds if isinstance(terms.rounds, range) else tuple(terms.rounds)
        if own not in priced:
            if any(a >= b for a, b in pairwise(own)) or (own and (own[0] < 0 or own[-1] >= len(plan.rounds))):
                raise Refused(f"silo {terms.name!r}: its rounds are not ascending rounds of the plan")
            priced[own] = positions[plan.census(own)], plan.num_queries(own)
        alike, count = priced[own]
        releases.append(count)
        if terms.public:
            admitted[position] = Admitted(terms, 0.0, inf, count)
        else:
            alike.append(position)
    priceable = [_own_noise(plan, terms, mechanism) for terms in silos] if mechanism.sums_only else silos
    for census, group in ((census, group) for census, group in positions.items() if group):
        members = [priceable[position] for position in group]
        bounded = mechanism.together(census, plan.unit.silos_per_person)
        prices = _prices(mechanism, census, bounded, members, limits)
        for position, (multiplier, epsilon) in zip(group, prices, strict=True):
            admitted[position] = Admitted(silos[position], multiplier, epsilon, releases[position])
    return [admitted[position] for position in range(len(silos))]


def _own_noise(plan: Plan, terms: Terms, mechanism: Mechanism) -> Terms:
    """The terms with the noise of secure aggregation as a multiple of this silo's sensitivity."""
    share, z = terms.share, terms.noise_multiplier
    if share is None or z is None:
        raise Refused(f"silo {terms.name!r}: noise and pool of secure aggregation are not given")
    sums = cast("SumMechanism", mechanism)
    if sums.transport == "messages" and any(len(plan.rounds[r]) > 1 for r in terms.rounds):
        hint = "a round is one message, and is priced as one draw of the batch"
        raise Refused(f"silo {terms.name!r}: the plan has rounds of several asks; {hint}")
    r = share.clip * share.pool.heaviest(share.position, plan.batches(terms.rounds))
    return replace(terms, noise_multiplier=sums.effective(z, r))


def _prices(
    mechanism: Mechanism, census: Census, bounded: Census, silos: Sequence[Terms], limits: Limits
) -> Sequence[tuple[float, float]]:
    """(noise multiplier, epsilon guaranteed) of each silo; `bounded`: what its budget is for."""
    if any(terms.noise_multiplier is not None for terms in silos):
        return _given(mechanism, census, bounded, silos, limits)
    if all(terms.epsilon == inf for terms in silos):
        return [(0.0, inf)] * len(silos)
    cases = [(terms.n, terms.epsilon, terms.delta) for terms in silos]
    budgets = {case: Budget(*case) for case in dict.fromkeys(cases)}
    try:
        most = limits.max_noise_multiplier
        found = _calibrated(mechanism, census, bounded, tuple(budgets.values()), most)
    except Refused as refusal:
        raise _named(refusal, mechanism, bounded, silos, limits) from None
    prices = dict(zip(budgets, found, strict=True))
    return [prices[case] for case in cases]


def _given(
    mechanism: Mechanism, census: Census, bounded: Census, silos: Sequence[Terms], limits: Limits
) -> Sequence[tuple[float, float]]:
    """The given noise multipliers at their true cost, which must be within the budgets all the same."""
    given = [terms.noise_multiplier for terms in silos if terms.noise_multiplier is not None]
    if len(given) < len(silos):
        raise Refused("the noise of some silos of one cohort is given, and that of others is not")
    for terms, z in zip(silos, given, strict=True):
        if not 0 <= z <= limits.max_noise_multiplier:
            bounds = f"[0, {limits.max_noise_multiplier:g}]"
            raise Refused(f"silo {terms.name!r}: noise multiplier {z:.6g} is not within {bounds}")
    cases = tuple((t.n, z, t.delta) for t, z in zip(silos, given, strict=True))
    try:
        epsilons, costs = (_costs(mechanism, each, cases) for each in (census, bounded))
    except Refused as refusal:
        raise _named(refusal, mechanism, bounded, silos, limits) from None
    for terms, z, epsilon in zip(silos, given, costs, strict=True):
        if epsilon > terms.epsilon:
            cost = f"plan costs epsilon {shown_up(epsilon, 6)} at the given noise multiplier {z:.6g}"
            raise Refused(f"silo {terms.name!r}: {cost}; its budget is {terms.epsilon:.6g}")
    return list(zip(given, epsilons, strict=True))


@lru_cache(maxsize=64)  # the trials of a run, and runs that differ in step size, ask for the same prices
def _costs(mechanism: Mechanism, census: Census, cases: tuple[tuple[int, float, float], ...]) -> list[float]:
    return mechanism.epsilons(census, cases)


@lru_cache(maxsize=64)
def _calibrated(
    mechanism: Mechanism, census: Census, bounded: Census, budgets: tuple[Budget, ...], limit: float
) -> list[tuple[float, float]]:
    multipliers = mechanism.noise_multipliers(bounded, budgets, limit)
    cases = [(budget.n, z, budget.delta) for budget, z in zip(budgets, multipliers, strict=True)]
    return list(zip(multipliers, mechanism.epsilons(census, cases), strict=True))


def _named(
    refusal: Refused, mechanism: Mechanism, census: Census, silos: Sequence[Terms], limits: Limits
) -> Refused:
    """The refusal of the first silo that cannot carry the plan even with the largest noise it allows."""
    z = limits.max_noise_multiplier
    for terms in silos:
        try:
            (least,) = mechanism.epsilons(census, [(terms.n, z, terms.delta)])
        except Refused as own:
            return Refused(f"silo {terms.name!r}: {own}")
        if least > terms.epsilon:
            return Refused(f"silo {terms.name!r}: {over_budget(least, z, terms.epsilon)}")
    return refusal


def price(plan: Plan, admitted: Admitted, mechanism: Mechanism) -> Price:
    """Cost of an admitted plan, round by round, at the silo's noise.

    A plan whose batches are not drawn at random, with Gaussian noise, costs mu^2, its choices as Gaussian
    releases; any other costs what its accountant found, (epsilon_guaranteed, delta), and as a whole. Refused
    if the mechanism guarantees nothing, or the plan has no finite price; a public silo, or one of no rounds,
    pays nothing.
    """
    if admitted.terms.public or not admitted.terms.rounds:
        return Price(_stretches((r, (0.0, 0.0, 0.0, ())) for r in admitted.terms.rounds))
    if not mechanism.private or not admitted.noise_multiplier > 0:
        raise Refused("a run without noise has no price")
    terms, z = admitted.terms, admitted.noise_multiplier
    if compose(as_gaussian(plan.census(terms.rounds)), terms.n).sampled or not mechanism.squares_add:
        own = Cost(epsilon=float(admitted.epsilon_guaranteed), delta=float(terms.delta))
        return Price(_stretches((r, (0.0, 0.0, 0.0, ())) for r in terms.rounds), own)

    def numbers(census: Census) -> _Numbers:
        parts: dict[Part, list[tuple[Release, int]]] = defaultdict(list)
        fresh, full = list[tuple[Release, int]](), list[tuple[Release, int]]()
        for entry in census:
            match entry[0].batch:
                case Part() as part:
                    parts[part].append(entry)
                case Fresh():
                    fresh.append(entry)
                case _:
                    full.append(entry)
        of_parts = (OnPart(part.start, part.stop, _mu_sq(some, terms.n, z)) for part, some in parts.items())
        squares = _mu_sq(full, terms.n, z), _mu_sq(fresh, terms.n, z)
        return *squares, up(_MARGIN * Fraction(mechanism.distance(census, z))), tuple(of_parts)

    first = {id(plan.rounds[r]): r for r in terms.rounds}  # rounds that are alike are one object as a rule
    known = {asks: numbers(as_gaussian(plan.census([r]))) for asks, r in first.items()}
    return Price(_stretches((r, known[id(plan.rounds[r])]) for r in terms.rounds))


def _mu_sq(part: Sequence[tuple[Release, int]], n: int, z: float) -> float:
    return up(_MARGIN * Fraction(compose(tuple(part), n).weight) ** 2 / Fraction(z) ** 2)


def _stretches(rounds: Iterable[tuple[int, _Numbers]]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    for index, numbers in rounds:
        last = found[-1] if found else None
        if last is not None and index == last.first + last.length and numbers == last[2:]:
            found[-1] = last._replace(length=last.length + 1)
        else:
            found.append(Stretch(index, 1, *numbers))
    return tuple(found)


def spent(plan: Plan, admitted: Admitted, debited: Iterable[int], mechanism: Mechanism) -> float:
    """Epsilon of the rounds paid for; valid as a guarantee if participation did not depend on answers."""
    if admitted.epsilon_guaranteed == inf:
        return inf
    rounds = sorted(debited)
    if rounds == list(admitted.terms.rounds):
        return admitted.epsilon_guaranteed
    case = admitted.terms.n, admitted.noise_multiplier, admitted.terms.delta
    return mechanism.epsilons(plan.census(rounds), [case])[0]


def silo_mechanism(
    answers: Extent, exact_noise_dimension: int, seeded: bool = False
) -> tuple[Mechanism, tuple[str, ...]]:
    """The mechanism for a plan of these answers, and what a reader must know of it.

    `exact_noise_dimension` is the largest d with exact noise, about 20 microseconds a number, 0 for none;
    noise that comes from a seed is never exact.
    """
    if not seeded and answers.largest <= exact_noise_dimension:
        from fedsim.privacy.grid import GridGaussian  # exact noise

        return GridGaussian(answers), ()
    return SiloGaussian(), () if seeded else (FLOATING_POINT,)
