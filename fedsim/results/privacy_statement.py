"""The privacy statement of a run: unit, adjacency, sampler, accountant, and what is not covered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import Any

from fedsim.privacy.attainable import epsilon as attainable_epsilon
from fedsim.protocol.batch import WithReplacement
from fedsim.protocol.terms import Admitted, Statement
from fedsim.results.outcome import Outcome, measures_objective
from fedsim.results.trusted import trusted
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved

UNIT = "one record of one silo"
ADJACENCY = "replace one record, number of records fixed and public"
GUARANTEE = (
    "for each silo, the transcript of all messages it sends is (epsilon_guaranteed, delta)-DP with respect "
    "to replacing one of its records, whatever the server and the other silos do"
)
ATTAINABLE = (
    "epsilon_attainable is no guarantee: a lower bound, which some pair of neighbouring data sets attains; "
    "the true epsilon lies between it and epsilon_guaranteed"
)
CHOICE = "the choice of algorithm, step size, clip norm and rounds, where data was looked at"
SPENT = "epsilon_spent is valid if participation did not depend on answers"

SPENT_IN_FULL = "no trial is complete: epsilon_spent counts the whole plan, of which rounds may be unpaid"


def statement(outcome: Outcome) -> dict[str, Any]:
    """The `privacy` part of the summary."""
    scenario = outcome.resolved.scenario
    private = scenario.privacy.mechanism == "gaussian"
    return {
        "notices": notices(outcome.resolved),
        "unit": UNIT if private else "none",
        "adjacency": ADJACENCY,
        "guarantee": GUARANTEE if private else "none: mechanism none neither clips nor adds noise",
        "mechanism": scenario.privacy.mechanism,
        "calibration": scenario.privacy.calibration,
        "sampler": samplers(outcome.resolved),
        "accountant": accountant(outcome.resolved),
        "epsilon_spent_note": SPENT if outcome.results.trials else SPENT_IN_FULL,
        **({"epsilon_attainable_note": ATTAINABLE} if private and has_gap(outcome.resolved) else {}),
        "trusted": trusted(outcome.resolved),
        "not_private": not_private(scenario),
        **claim(outcome.resolved),
        "silos": _silos(outcome),
    }


def notices(resolved: Resolved) -> list[str]:
    """What a reader must know before any number; empty for a run within a budget."""
    privacy, prescribed = resolved.scenario.privacy, resolved.prescribed
    lines = []
    if privacy.mechanism == "none":
        lines.append("No privacy: mechanism none neither clips nor adds noise")
    if privacy.mechanism == "gaussian" and privacy.epsilon == "unlimited":
        lines.append(
            "epsilon is unlimited: no budget bounds what this run costs, which only a simulation allows"
        )
    if prescribed is not None and prescribed.violations:
        lines.append(f"outside the conditions of {prescribed.theorem}, so that its claim does not apply:")
        lines += [f"  {violation}" for violation in prescribed.violations]
    return lines


def claim(resolved: Resolved) -> dict[str, Any]:
    """What a theorem claims for the run, where one set its noise."""
    prescribed = resolved.prescribed
    if prescribed is None or prescribed.theorem is None:
        return {}
    return {"theorem": prescribed.theorem, "violations": list(prescribed.violations)}


def parameters(resolved: Resolved) -> dict[str, Any]:
    """The numbers that a theorem chose, and what it also sets that the algorithm has no field for."""
    derived = resolved.derived
    if derived is None:
        return {}
    chosen = {"theorem": derived.theorem, "values": derived.values, "not_applied": derived.notes}
    chosen |= {"predicted": derived.predicted} if derived.predicted else {}
    return {"parameters": chosen}


def claimed(resolved: Resolved, name: str) -> dict[str, float]:
    """The theorem's claim for one silo, to stand beside the true epsilon."""
    prescribed = resolved.prescribed
    if prescribed is None or prescribed.claimed_epsilons is None or prescribed.claimed_deltas is None:
        return {}
    at = resolved.names.index(name)
    return {
        "epsilon_claimed": prescribed.claimed_epsilons[at],
        "delta_claimed": prescribed.claimed_deltas[at],
    }


def samplers(resolved: Resolved) -> list[str]:
    """The samplers that the plan uses."""
    return sorted({release.batch.sampler for release, _ in resolved.trace.plan.census()})


def has_gap(resolved: Resolved) -> bool:
    """Whether the plan uses a sampler whose proven bound is not known to be attained."""
    return WithReplacement.sampler in samplers(resolved)


def attainable(resolved: Resolved, silos: Sequence[Admitted]) -> list[dict[str, float]]:
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


def accountant(resolved: Resolved) -> str:
    """How the plan was priced."""
    if resolved.scenario.privacy.mechanism == "none":
        return "none"
    if set(samplers(resolved)) <= {"full", "fresh"}:
        return "exact Gaussian"
    return "privacy loss distribution, connect-the-dots, every rounding upwards"


def not_private(scenario: Scenario) -> list[str]:
    """What the guarantee does not cover, most important first."""
    private = scenario.privacy.mechanism == "gaussian"
    notes = {
        "everything: mechanism none neither clips nor adds noise": not private,
        **dict.fromkeys([*scenario.data.not_private, *scenario.partition.not_private], True),
        "metrics: they are computed from test records, which only a simulation can do": True,
        "heterogeneity: it is computed from all silos' training records, which only a simulation can do": (
            scenario.report.heterogeneity
        ),
        "excess risk and gradient mapping: they are computed from training records of all silos, which only "
        "a simulation can do": measures_objective(scenario),
        "the noise against whoever knows the seed (scenario.yaml has it): it is reproducible, and drawn in "
        "floating point": private,
        "the non-private twin of the run, shown for comparison": private and scenario.report.nonprivate_twin,
        "trials together: they repeat the run to measure its spread; the guarantee is that of one trial": (
            private and scenario.trials > 1
        ),
        CHOICE: True,
    }
    return [note for note, applies in notes.items() if applies]


def _silos(outcome: Outcome) -> list[dict[str, Any]]:
    """One row a silo; over trials with different participation, the one that cost it most.

    Where none is complete, each silo counts as having spent all that it had accepted.
    """
    worst: dict[str, Statement] = {}
    for said in [said for trial in outcome.results.trials.values() for said in trial.statements] or [
        Statement(accepted, accepted.epsilon_guaranteed, list(accepted.terms.rounds), [])
        for accepted in outcome.admitted
    ]:
        name = said.admitted.terms.name
        if _cost(said) >= _cost(worst.setdefault(name, said)):
            worst[name] = said
    rows = [worst[name] for name in sorted(worst)]
    bounds = attainable(outcome.resolved, [row.admitted for row in rows])
    return [
        _row(row) | claimed(outcome.resolved, row.admitted.terms.name) | bound
        for row, bound in zip(rows, bounds, strict=True)
    ]


def _cost(said: Statement) -> tuple[float, float]:
    return said.admitted.epsilon_guaranteed, said.epsilon_spent


def _row(said: Statement) -> dict[str, Any]:
    spent = {"epsilon_spent": finite(said.epsilon_spent), "rounds": len(said.rounds)}
    return admitted_row(said.admitted) | spent


def admitted_row(admitted: Admitted) -> dict[str, Any]:
    """What a silo accepted, as plain values."""
    return {
        "name": admitted.terms.name,
        "n": admitted.terms.n,
        "epsilon_budget": finite(admitted.terms.epsilon),
        "delta": admitted.terms.delta,
        "epsilon_guaranteed": finite(admitted.epsilon_guaranteed),
        "noise_multiplier": admitted.noise_multiplier,
        "releases": admitted.releases,
    }


def finite(value: float) -> float | None:
    """None for infinity, which JSON cannot say."""
    return value if isfinite(value) else None
