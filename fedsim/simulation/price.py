"""What a run would cost each silo, without records and without Ray."""

from __future__ import annotations

from functools import cache

from fedsim.privacy import verify
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.terms import Admitted
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import agreed_terms
from silos.admission import admit


def preview(resolved: Resolved, trial: int = 0) -> list[Admitted]:
    """Admission of every silo, in canonical order, for one trial's participation.

    Raises:
        Refused: a silo cannot afford the plan.
    """
    return admit(resolved.trace.plan, agreed_terms(resolved, trial), resolved.mechanism, LIMITS)


def second_opinions(resolved: Resolved, admitted: list[Admitted]) -> list[float]:
    """The silos' epsilons as dp-accounting composes them; equal cases are priced once."""
    price = cache(verify.epsilon)
    plan = resolved.trace.plan
    return [
        price(plan.census(silo.terms.rounds), silo.terms.n, silo.noise_multiplier, silo.terms.delta)
        for silo in admitted
    ]
