"""The guarantees of a run in other units: groups of records, whole silos, the federation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from fedsim.privacy import convert
from fedsim.privacy.convert import Guarantee
from fedsim.privacy.cost import compose
from fedsim.protocol.terms import Admitted
from fedsim.scenario.resolve import Resolved

GROUPS = (2, 5, 10)
EXACT, GENERIC = "exact Gaussian, k mu", "(k epsilon, k e^((k-1) epsilon) delta)"


def conversions(resolved: Resolved, silos: Sequence[Admitted]) -> dict[str, Any]:
    """Plain values; None where nothing is guaranteed (delta would reach 1)."""
    pairs = [(silo.epsilon_guaranteed, silo.terms.delta) for silo in silos]
    return {
        "central": _plain(convert.central(pairs)),
        "silos": [_silo(resolved, silo) for silo in silos],
    }


def _silo(resolved: Resolved, silo: Admitted) -> dict[str, Any]:
    """Group privacy, user level and the recipe for a user-level budget of the same numbers."""
    terms = silo.terms
    rule, of_group = _group_rule(resolved, silo)
    return {
        "name": terms.name,
        "n": terms.n,
        "group_rule": rule,
        "group": [{"records": k, "guarantee": _plain(of_group(k))} for k in GROUPS if k <= terms.n],
        "user_level": _plain(of_group(terms.n)),
        "record_level_for_user_level_budget": (
            _plain(convert.hybrid(terms.epsilon, terms.delta, terms.n)) if terms.epsilon <= 1 else None
        ),
    }


def _group_rule(resolved: Resolved, silo: Admitted) -> tuple[str, Callable[[int], Guarantee | None]]:
    """The best rule that holds: k mu where the plan is one Gaussian, the generic one otherwise."""
    terms, z = silo.terms, silo.noise_multiplier
    composition = compose(resolved.trace.plan.census(terms.rounds), terms.n)
    if composition.sampled:
        return GENERIC, lambda k: convert.group(silo.epsilon_guaranteed, terms.delta, k)
    mu = composition.weight / z if z > 0 else inf if composition.weight > 0 else 0.0
    return EXACT, lambda k: convert.group_gaussian(mu, terms.delta, k)


def _plain(guarantee: Guarantee | None) -> dict[str, float] | None:
    return None if guarantee is None else guarantee._asdict()
