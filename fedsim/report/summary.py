"""The summary of a run: what was learnt, and what it cost whom."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import numpy as np

from fedsim.report.participation import participation
from fedsim.report.privacy import parameters, statement
from fedsim.scenario.outcome import Outcome

FORMAT = 2
"""Of the run directory; a reader refuses any other."""


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
        **parameters(outcome.resolved),
        "privacy": statement(outcome),
        "versions": _versions(),
        "environment": {"platform": platform.platform(), "cpus": os.cpu_count()},
    }


def _metrics(outcome: Outcome) -> dict[str, Any]:
    metrics: dict[str, Any] = {"error": outcome.resolved.problem.error_name}
    for variant, suffix in ((outcome.main, ""), ("nonprivate", "_nonprivate")):
        for name in ("test_error", "test_loss"):
            values = final_values(outcome, variant, name)
            metrics[name + suffix] = float(values.mean()) if len(values) else None
            metrics[f"{name}{suffix}_interval90"] = interval90(values)
    return metrics


def final_values(outcome: Outcome, variant: str, name: str) -> np.ndarray:
    """The last value of a metric in each finished trial."""
    last: dict[int, float] = {}
    for measurement in outcome.results.measurements:
        if measurement.variant == variant and measurement.trial in outcome.results.trials:
            last[measurement.trial] = getattr(measurement, name)
    return np.array([last[trial] for trial in sorted(last)])


def interval90(values: np.ndarray) -> list[float] | None:
    """The 5th and 95th percentile over trials: where 90 % of single runs fall, not where the mean lies."""
    return [float(p) for p in np.percentile(values, [5, 95])] if len(values) else None


def _versions(
    packages: Iterable[str] = ("fedsim-isrl", "torch", "numpy", "ray", "dp-accounting"),
) -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
