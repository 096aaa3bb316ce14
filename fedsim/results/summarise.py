"""From a run's outcome to its summary."""

from __future__ import annotations

import os
import platform
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from fedsim.protocol.participants import Available, announced, attendance_law, pull
from fedsim.results.outcome import Deployed, Outcome
from fedsim.results.privacy_statement import parameters, statement
from fedsim.results.summary import (
    FEW,
    FORMAT,
    MEASURED,
    OF_TRAINING,
    Clipping,
    Deployment,
    Heterogeneity,
    Interval,
    LeftOut,
    Metrics,
    Objective,
    Participation,
    Summary,
    Trials,
)
from fedsim.results.warnings import warnings


def summarise(outcome: Outcome) -> Summary:
    """What a run came to and what it cost whom."""
    scenario = outcome.resolved.scenario
    return Summary(
        format=FORMAT,
        scenario=scenario.name,
        status="interrupted" if outcome.interrupted else "finished",
        algorithm=scenario.algorithm.name,
        problem=scenario.problem.name,
        runtime=scenario.runtime.name if outcome.deployed is None else "deployed",
        trials=Trials(asked=scenario.trials, finished=len(outcome.results.trials)),
        rounds=len(outcome.resolved.trace.plan.rounds),
        dimension=outcome.resolved.problem.dimension,
        wall_seconds=round(outcome.wall_seconds, 3),
        warnings=warnings(outcome),
        metrics=_metrics(outcome),
        participation=_participation(outcome),
        privacy=statement(outcome),
        versions=_versions(),
        environment={"platform": platform.platform(), "cpus": os.cpu_count()},
        **parameters(outcome.resolved),
        **_simulated(outcome),
    )


def _simulated(outcome: Outcome) -> dict[str, Any]:
    """What was measured of training records, where it was asked for; of a deployed run what was not."""
    found: dict[str, Any] = {}
    if outcome.deployed is not None:
        found["deployment"] = _deployment(outcome.deployed)
    if outcome.heterogeneity is not None:
        found["heterogeneity"] = Heterogeneity(**outcome.heterogeneity)
    first = next((trial for _, trial in sorted(outcome.results.trials.items())), None)
    if first is not None and first.objective is not None:
        found["objective"] = Objective(**first.objective)
    if clipping := _clipping(outcome):
        found["clipping"] = clipping
    return found


_CLIPPING = (
    "made of training records without noise, in simulation only: a federation would have to query for it"
)


def _clipping(outcome: Outcome) -> Clipping | None:
    """Of the last rounds, whose terms say whether the end is the clip's or the problem's."""
    late = 0.9 * len(outcome.resolved.trace.plan.rounds)
    rows = [row for trial in outcome.results.trials.values() for row in trial.clipping if row.round > late]
    if not rows:
        return None
    return Clipping(
        clipped=float(np.mean([row.clipped for row in rows])),
        median_norm=float(np.mean([row.median_norm for row in rows])),
        note=_CLIPPING,
    )


def _deployment(deployed: Deployed) -> Deployment:
    return Deployment(
        min_silos=deployed.min_silos,
        left_out=[
            LeftOut(name=name, rounds=rounds, reasons=list(reasons))
            for name, (rounds, reasons) in sorted(deployed.left_out.items())
        ],
        without_statement=dict(deployed.unstated),
        remarks=list(deployed.remarks),
        unmeasured=list(deployed.unmeasured),
        measured=deployed.measured,
    )


def _metrics(outcome: Outcome) -> Metrics:
    metrics: dict[str, Any] = {}
    for variant, suffix in ((outcome.main, ""), ("nonprivate", "_nonprivate")):
        for name in MEASURED:
            values = _final_values(outcome, variant, name)
            if name in OF_TRAINING and not len(values):
                continue
            metrics[name + suffix] = float(values.mean()) if len(values) else None
            metrics[f"{name}{suffix}_interval90"] = interval90(values)
    return Metrics(error_name=outcome.resolved.problem.error_name, **metrics)


def _final_values(outcome: Outcome, variant: str, name: str) -> np.ndarray:
    """The last value of a metric in each finished trial that has one."""
    last: dict[int, float | None] = {}
    for measurement in outcome.results.measurements:
        if measurement.variant == variant and measurement.trial in outcome.results.trials:
            last[measurement.trial] = getattr(measurement, name)
    return np.array([value for _, value in sorted(last.items()) if value is not None])


def interval90(values: np.ndarray) -> Interval | None:
    """The 5th and 95th percentile over trials: where 90 % of single runs fall, not where the mean lies. Of
    fewer than `FEW` the lowest and the highest.
    """
    if not len(values):
        return None
    low, high = np.percentile(values, [0, 100] if len(values) < FEW else [5, 95])
    return float(low), float(high)


def _participation(outcome: Outcome) -> Participation:
    resolved = outcome.resolved
    counts, sizes = pull(resolved.active, len(resolved.names)), _observed(outcome)
    empty = {}
    if isinstance(resolved.active, Available):
        # The server asks again after such a round; nobody has paid for it.
        empty["empty_round_probability"] = float(attendance_law(resolved.active.probabilities)[0])
    return Participation(
        name=resolved.scenario.participation.name,
        num_silos=len(resolved.names),
        effective_m=resolved.effective_m,
        expected_inverse_m=1 / resolved.effective_m,
        observed_mean_m=float(sizes.mean()) if len(sizes) else None,
        observed_mean_inverse_m=float((1 / sizes).mean()) if len(sizes) else None,
        pull=(float(counts.min()), float(counts.max())),
        plan_covers="own rounds" if announced(resolved.active) else "all rounds",
        **empty,
    )


def _observed(outcome: Outcome) -> np.ndarray:
    """M_r of every round of every finished trial; in a deployed run a round may be paid for and not count."""
    if outcome.deployed is not None:
        return np.array(outcome.deployed.answered, dtype=float)
    counts = Counter(
        (number, r)
        for number, trial in outcome.results.trials.items()
        for said in trial.statements
        for r in said.rounds
    )
    return np.array(list(counts.values()), dtype=float)


def _versions() -> dict[str, str]:
    """Of what is installed; a deployment's server may have no Ray."""
    found = {"python": platform.python_version()}
    for name in ("fedsim-isrl", "torch", "numpy", "ray", "dp-accounting"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
