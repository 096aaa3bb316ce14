"""What a run costs each silo: a row each of what it admitted, what is claimed for it, and what it spent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import Any

from fedsim.common.canonical import finite
from fedsim.privacy.attainable import epsilon as attainable_epsilon
from fedsim.protocol.batch import WithReplacement
from fedsim.protocol.terms import Admitted, Statement
from fedsim.results.outcome import Outcome
from fedsim.results.summary import SiloRow
from fedsim.scenario.resolve import Resolved


def costliest(outcome: Outcome) -> list[Statement]:
    """What each silo states of the trial that cost it most, by name: trials differ in who took part."""
    worst: dict[str, Statement] = {}
    for said in (said for trial in outcome.results.trials.values() for said in trial.statements):
        name = said.admitted.terms.name
        if _cost(said) >= _cost(worst.setdefault(name, said)):
            worst[name] = said
    return [worst[name] for name in sorted(worst)]


def silo_rows(outcome: Outcome) -> list[SiloRow]:
    """One row a silo, of `costliest`; where no trial is complete, what was accepted, and nothing spent."""
    rows = costliest(outcome)
    if not rows:
        first = {accepted.terms.name: accepted for accepted in reversed(outcome.admitted)}
        return admitted_rows(outcome.resolved, [first[name] for name in sorted(first)])
    spent = [{"epsilon_spent": finite(said.epsilon_spent), "rounds": len(said.rounds)} for said in rows]
    return admitted_rows(outcome.resolved, [said.admitted for said in rows], spent)


def _cost(said: Statement) -> tuple[float, float]:
    return said.admitted.epsilon_guaranteed, said.epsilon_spent


def admitted_rows(
    resolved: Resolved, admitted: Sequence[Admitted], more: Sequence[dict[str, Any]] = ()
) -> list[SiloRow]:
    """What silos accepted, with `more` fields of each row."""
    bounds, claims = _attainable(resolved, admitted), _claimed(resolved)
    return [
        SiloRow(
            name=silo.terms.name,
            n=silo.terms.n,
            epsilon_budget=finite(silo.terms.epsilon),
            delta=silo.terms.delta,
            epsilon_guaranteed=finite(silo.epsilon_guaranteed),
            noise_multiplier=silo.noise_multiplier,
            releases=silo.releases,
            **shared,
            **claims.get(silo.terms.name, {}),
            **bound,
            **fields,
        )
        for silo, bound, shared, fields in zip(
            admitted, bounds, _colluding(resolved, admitted), more or [{}] * len(admitted), strict=True
        )
    ]


def _colluding(resolved: Resolved, admitted: Sequence[Admitted]) -> list[dict[str, float | None]]:
    """{"epsilon_colluding": under each silo's own share of the noise}, where silos are added up."""
    if resolved.sums is None:
        return [{}] * len(admitted)
    mechanism, census = resolved.sums.mechanism, cache(resolved.trace.plan.census)
    price = cache(lambda own, *case: mechanism.colluding_epsilons(own, [case])[0])
    return [
        {
            "epsilon_colluding": finite(
                price(
                    census(_hashable(silo.terms.rounds)),
                    silo.terms.n,
                    silo.noise_multiplier,
                    silo.terms.delta,
                )
            )
        }
        for silo in admitted
    ]


def _claimed(resolved: Resolved) -> dict[str, dict[str, float]]:
    """By silo, a theorem's claim, to stand beside the true epsilon."""
    prescribed = resolved.prescribed
    if prescribed is None or prescribed.claimed_epsilons is None or prescribed.claimed_deltas is None:
        return {}
    claims = zip(resolved.names, prescribed.claimed_epsilons, prescribed.claimed_deltas, strict=True)
    return {name: {"epsilon_claimed": epsilon, "delta_claimed": delta} for name, epsilon, delta in claims}


def _attainable(resolved: Resolved, silos: Sequence[Admitted]) -> list[dict[str, float]]:
    """{"epsilon_attainable": lower bound} of each silo, {} where the guaranteed number says it all."""
    if not has_gap(resolved):
        return [{}] * len(silos)
    price, census = cache(attainable_epsilon), cache(resolved.trace.plan.census)
    return [
        {"epsilon_attainable": price(census(_hashable(terms.rounds)), terms.n, z, terms.delta)}
        if isfinite(silo.epsilon_guaranteed)
        else {}
        for silo in silos
        for terms, z in [(silo.terms, silo.noise_multiplier)]
    ]


def _hashable(rounds: Sequence[int]) -> Sequence[int]:
    return rounds if isinstance(rounds, range) else tuple(rounds)


def samplers(resolved: Resolved) -> list[str]:
    """The samplers that the plan uses."""
    return sorted({release.batch.sampler for release, _ in resolved.trace.plan.census()})


def has_gap(resolved: Resolved) -> bool:
    """Whether the plan uses a sampler whose proven bound is not known to be attained."""
    return WithReplacement.sampler in samplers(resolved)
