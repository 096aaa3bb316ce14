"""The privacy statement of a run: unit, adjacency, sampler, accountant, and what is not covered."""

from __future__ import annotations

from math import isfinite
from typing import Any

from fedsim.protocol.terms import Admitted, Statement
from fedsim.scenario.model import Scenario
from fedsim.scenario.outcome import Outcome
from fedsim.scenario.resolve import Resolved

UNIT = "one record of one silo"
ADJACENCY = "replace one record, number of records fixed and public"
GUARANTEE = (
    "for each silo, the transcript of all messages it sends is (epsilon_guaranteed, delta)-DP with respect "
    "to replacing one of its records, whatever the server and the other silos do"
)
SPENT = "epsilon_spent is valid if participation did not depend on answers"


def statement(outcome: Outcome) -> dict[str, Any]:
    """The `privacy` part of the summary."""
    scenario = outcome.resolved.scenario
    private = scenario.privacy.mechanism == "gaussian"
    return {
        "unit": UNIT if private else "none",
        "adjacency": ADJACENCY,
        "guarantee": GUARANTEE if private else "none: mechanism none neither clips nor adds noise",
        "mechanism": scenario.privacy.mechanism,
        "calibration": scenario.privacy.calibration,
        "sampler": samplers(outcome.resolved),
        "accountant": accountant(outcome.resolved),
        "epsilon_spent_note": SPENT,
        "not_private": not_private(scenario),
        "silos": _silos(outcome),
    }


def samplers(resolved: Resolved) -> list[str]:
    """The samplers that the plan uses."""
    return sorted({release.batch.sampler for release, _ in resolved.trace.plan.census()})


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
        "features were scaled by statistics of the training records (scaling: training_statistics)": (
            scenario.data.scaling == "training_statistics"
        ),
        "features were reduced to principal components of the training records (pca)": (
            scenario.data.pca is not None
        ),
        "everything: mechanism none neither clips nor adds noise": not private,
        "the schema: its ranges, categories and fill values count as public, so take them from "
        "documentation, not from the data": scenario.data.name == "csv",
        "who holds which record: the partition looks at labels or features to deal records out": (
            scenario.partition.name not in ("iid", "size", "natural_id")
        ),
        "metrics: they are computed from test records, which only a simulation can do": True,
        "the noise against whoever knows the seed: it is reproducible, and drawn in floating point": private,
        "the non-private twin of the run, shown for comparison": private and scenario.report.nonprivate_twin,
        "trials together: they repeat the run to measure its spread; the guarantee is that of one trial": (
            private and scenario.trials > 1
        ),
        "the choice of algorithm, step size, clip norm and rounds, where data was looked at": True,
    }
    return [note for note, applies in notes.items() if applies]


def _silos(outcome: Outcome) -> list[dict[str, Any]]:
    """One row a silo; over trials with different participation, the one that cost it most."""
    worst: dict[str, Statement] = {}
    for trial in outcome.results.trials.values():
        for said in trial.statements:
            name = said.admitted.terms.name
            if said.admitted.epsilon_guaranteed >= worst.setdefault(name, said).admitted.epsilon_guaranteed:
                worst[name] = said
    return [_row(worst[name]) for name in sorted(worst)]


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
