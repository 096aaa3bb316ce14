"""The summary of a run: what was learnt, and what it cost whom."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import numpy as np

from fedsim.results.attended import participation
from fedsim.results.outcome import Outcome
from fedsim.results.privacy_statement import parameters, statement

FORMAT = 2
"""Of the run directory; a reader refuses any other."""

OF_TRAINING = ("excess_risk", "gradient_mapping_sq")
MEASURED = ("test_error", "test_loss", *OF_TRAINING)
"""Metrics of an evaluation."""


def summarise(outcome: Outcome) -> dict[str, Any]:
    """`summary.json` as plain values; numbers that do not exist (or are infinite) are None."""
    scenario = outcome.resolved.scenario
    return {
        "format": FORMAT,
        "scenario": scenario.name,
        "status": "interrupted" if outcome.interrupted else "finished",
        "algorithm": scenario.algorithm.name,
        "problem": scenario.problem.name,
        "runtime": scenario.runtime.name,
        "trials": {"asked": scenario.trials, "finished": len(outcome.results.trials)},
        "rounds": len(outcome.resolved.trace.plan.rounds),
        "dimension": outcome.resolved.problem.dimension,
        "wall_seconds": round(outcome.wall_seconds, 3),
        "metrics": _metrics(outcome),
        "participation": participation(outcome),
        **({} if outcome.heterogeneity is None else {"heterogeneity": outcome.heterogeneity}),
        **_objective(outcome),
        **parameters(outcome.resolved),
        "privacy": statement(outcome),
        "versions": _versions(),
        "environment": {"platform": platform.platform(), "cpus": os.cpu_count()},
    }


def _metrics(outcome: Outcome) -> dict[str, Any]:
    metrics: dict[str, Any] = {"error": outcome.resolved.problem.error_name}
    for variant, suffix in ((outcome.main, ""), ("nonprivate", "_nonprivate")):
        for name in MEASURED:
            values = final_values(outcome, variant, name)
            if name in OF_TRAINING and not len(values):
                continue
            metrics[name + suffix] = float(values.mean()) if len(values) else None
            metrics[f"{name}{suffix}_interval90"] = interval90(values)
    return metrics


def _objective(outcome: Outcome) -> dict[str, Any]:
    """How the excess risk was measured, of the first complete trial; nothing where it was not."""
    first = next((trial for _, trial in sorted(outcome.results.trials.items())), None)
    return {} if first is None or first.objective is None else {"objective": first.objective}


def final_values(outcome: Outcome, variant: str, name: str) -> np.ndarray:
    """The last value of a metric in each finished trial that has one."""
    last: dict[int, float | None] = {}
    for measurement in outcome.results.measurements:
        if measurement.variant == variant and measurement.trial in outcome.results.trials:
            last[measurement.trial] = getattr(measurement, name)
    return np.array([value for _, value in sorted(last.items()) if value is not None])


def interval90(values: np.ndarray) -> list[float] | None:
    """The 5th and 95th percentile over trials: where 90 % of single runs fall, not where the mean lies."""
    return [float(p) for p in np.percentile(values, [5, 95])] if len(values) else None


def _versions(
    packages: Iterable[str] = ("fedsim-isrl", "torch", "numpy", "ray", "dp-accounting"),
) -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
