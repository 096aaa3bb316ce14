"""The guarantees of a run in other units: groups of records, whole silos, the federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Annotated

from pydantic import PlainSerializer

from fedsim.privacy import convert
from fedsim.privacy.convert import Guarantee
from fedsim.privacy.cost import compose
from fedsim.protocol.terms import Admitted
from fedsim.results.summary import Part
from fedsim.scenario.resolve import Resolved

GROUPS = (2, 5, 10)
EXACT, GENERIC = "exact Gaussian, k mu", "(k epsilon, k e^((k-1) epsilon) delta)"


Plain = Annotated[Guarantee, PlainSerializer(Guarantee._asdict)]
"""{"epsilon": ..., "delta": ...} in JSON."""


class GroupPrivacy(Part):
    """For replacing so many records; None where nothing is guaranteed (delta would reach 1)."""

    records: int
    guarantee: Plain | None


class SiloConversions(Part):
    """Group privacy, user level, and the record-level budget that makes the silo's own hold at user level."""

    name: str
    n: int
    group_rule: str
    group: list[GroupPrivacy]
    user_level: Plain | None
    record_level_for_user_level_budget: Plain | None


class Conversions(Part):
    """`central` is for one record, wherever it lies."""

    central: Plain | None
    silos: list[SiloConversions]


def conversions(resolved: Resolved, silos: Sequence[Admitted]) -> Conversions:
    """The guarantees of silos that admitted the run's plan."""
    pairs = [(silo.epsilon_guaranteed, silo.terms.delta) for silo in silos]
    return Conversions(central=convert.central(pairs), silos=[_silo(resolved, each) for each in silos])


def _silo(resolved: Resolved, silo: Admitted) -> SiloConversions:
    terms = silo.terms
    rule, of_group = _group_rule(resolved, silo)
    recipe = convert.hybrid(terms.epsilon, terms.delta, terms.n) if terms.epsilon <= 1 else None
    return SiloConversions(
        name=terms.name,
        n=terms.n,
        group_rule=rule,
        group=[GroupPrivacy(records=k, guarantee=of_group(k)) for k in GROUPS if k <= terms.n],
        user_level=of_group(terms.n),
        record_level_for_user_level_budget=recipe,
    )


def _group_rule(resolved: Resolved, silo: Admitted) -> tuple[str, Callable[[int], Guarantee | None]]:
    """The best rule that holds: k mu where the plan is one Gaussian, the generic one otherwise."""
    terms, z = silo.terms, silo.noise_multiplier
    composition = compose(resolved.trace.plan.census(terms.rounds), terms.n)
    if composition.sampled:
        return GENERIC, lambda k: convert.group(silo.epsilon_guaranteed, terms.delta, k)
    mu = composition.weight / z if z > 0 else inf if composition.weight > 0 else 0.0
    return EXACT, lambda k: convert.group_gaussian(mu, terms.delta, k)
