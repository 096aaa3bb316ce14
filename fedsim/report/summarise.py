"""A run's summary, computed from its record, with warnings of unusual settings."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from fedsim.common import installed
from fedsim.common.plugins import short
from fedsim.common.serialise import finite
from fedsim.problems.kinds import gives_probabilities
from fedsim.report import record, summary
from fedsim.report.outcome import Outcome, Results, interval90, value
from fedsim.report.privacy_statement import parameters, statement
from fedsim.report.sections.registry import SECTIONS, FullSummary
from fedsim.report.silo_rows import admitted_of
from fedsim.report.texts import no_better
from fedsim.scenario.metric import BaselineName
from fedsim.scenario.noise_cost import noise_cost
from fedsim.scenario.resolve import Resolved
from fedsim.theory.participants import Available, announced, attendance_law, pull


def summarise(outcome: Outcome) -> summary.Summary:
    """The summary of a run: metrics, participation, cost of each silo."""
    scenario, metrics = outcome.resolved.scenario, _metrics(outcome)
    baselines = baselines_of(outcome.results.rows(record.BaselineMeasurement))
    multipliers = [silo.noise_multiplier for silo in outcome.admitted[: len(outcome.resolved.names)]]
    parts: dict[str, Any] = {
        "baselines": baselines,
        "deployment": outcome.deployed and _deployment(outcome, outcome.deployed),
        "heterogeneity": outcome.heterogeneity and summary.Heterogeneity(**outcome.heterogeneity),
        **{one.name: one.summarise(outcome) for one in SECTIONS if one.part},
    }
    return FullSummary(
        format=summary.FORMAT,
        scenario=scenario.name,
        status="interrupted" if outcome.interrupted else "finished",
        algorithm=short(scenario.algorithm.name),
        problem=short(scenario.problem.name),
        runtime=scenario.runtime.name if outcome.deployed is None else "deployed",
        trials=summary.Trials(asked=scenario.trials, finished=len(outcome.results.trials)),
        rounds=len(outcome.resolved.trace.plan.rounds),
        dimension=outcome.resolved.problem.dimension,
        noise_cost=finite(noise_cost(outcome.resolved, multipliers)),
        wall_seconds=round(outcome.wall_seconds, 3),
        warnings=[*warnings(outcome), *no_better(metrics, baselines)],
        metrics=metrics,
        participation=_participation(outcome),
        privacy=statement(outcome),
        versions=_versions(),
        environment={"platform": platform.platform(), "cpus": os.cpu_count()},
        **parameters(outcome.resolved),
        **{name: part for name, part in parts.items() if part},
    )


def _deployment(outcome: Outcome, deployed: summary.Deployment) -> summary.Deployment:
    missed: dict[str, dict[int, str]] = {}
    for row in outcome.results.rows(record.AskedSilo):
        if row.left_out is not None:
            missed.setdefault(row.silo, {})[row.round + 1] = row.left_out
    left_out = [
        summary.LeftOut(
            name=name, rounds=len(why), which=_stretches(list(why)), reasons=_few(why.values(), 3)
        )
        for name, why in sorted(missed.items())
    ]
    seconds = [each if each is None else round(each, 3) for each in deployed.round_seconds]
    return deployed.model_copy(update={"left_out": left_out, "round_seconds": seconds})


def _stretches(numbers: Sequence[int]) -> str:
    """Ascending numbers in words, the first few stretches of them.

    >>> _stretches([3, 4, 5, 9])
    '3 to 5, 9'
    """
    starts = [i for i, each in enumerate(numbers) if not i or each != numbers[i - 1] + 1]
    pairs = [(numbers[i], numbers[j - 1]) for i, j in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    return ", ".join(_few([str(low) if low == high else f"{low} to {high}" for low, high in pairs], 8))


def _few(texts: Iterable[str], most: int) -> list[str]:
    different = list(dict.fromkeys(texts))
    return [*different[:most], *["..."] * (len(different) > most)]


def baselines_of(rows: Sequence[record.BaselineMeasurement]) -> list[summary.Baseline]:
    """One for each kind, in the order in which they come; one that some trial has not has no mean."""
    trials = {row.trial for row in rows}
    kinds = record.grouped(rows, lambda row: row.baseline)
    return [_baseline(k, own) for k, own in kinds.items() if {row.trial for row in own} == trials]


def _baseline(kind: BaselineName, rows: Sequence[record.BaselineMeasurement]) -> summary.Baseline:
    by_silo = [row for row in rows if row.silo is not None]
    together = [row for row in rows if row.silo is None]
    fits = by_silo or together
    sizes = [row.train_records for row in fits]
    return summary.Baseline(
        name=kind,
        **({"silos": len({row.silo for row in by_silo})} if by_silo else {}),
        train_records=(min(sizes), max(sizes)),
        methods=list(dict.fromkeys(row.method for row in fits)),
        **spreads(together or by_silo),
    )


def _metrics(outcome: Outcome) -> summary.Metrics:
    resolved, report = outcome.resolved, outcome.resolved.scenario.report
    own: dict[str, Any] = {"error_name": resolved.problem.error_name, "metric": report.metric}
    if resolved.outline.num_classes == 2 and gives_probabilities(resolved.problem):
        own["threshold"] = report.threshold
    baseline = summary.Values(**_finals(outcome, "nonprivate"))
    return summary.Metrics(**_finals(outcome, outcome.main), **own, nonprivate=baseline)


def _finals(outcome: Outcome, variant: str) -> dict[str, Any]:
    """A variant's final metrics as fields of `Values`, `error` and `loss` always among them."""
    trials = outcome.results.trials
    if any(variant not in trial.models for trial in trials.values()):
        return spreads([])  # a baseline that diverged
    rows = [row for row in outcome.results.rows(record.Measurement) if row.variant == variant]
    return spreads(list({row.trial: row for row in rows if row.trial in trials}.values()))  # each one's last


def spreads(rows: Sequence[record.HasMetrics]) -> dict[str, Any]:
    """Fields of `Values`: of every metric that some row has, and of `error` and `loss`."""
    result: dict[str, Any] = {}
    for name in summary.MEASURED:
        values = np.array([each for row in rows if (each := value(row, name)) is not None])
        if len(values) or name in ("error", "loss"):
            known = values if np.isfinite(values).all() else values[:0]  # a run that diverged has no mean
            result[name] = float(known.mean()) if len(known) else None
            result[f"{name}_interval90"] = interval90(known) if len(known) else None
    return result


def _participation(outcome: Outcome) -> summary.Participation:
    resolved = outcome.resolved
    counts, sizes = pull(resolved.active, len(resolved.names)), _observed(outcome)
    empty = {}
    if isinstance(resolved.active, Available):
        # The server asks again after such a round; no silo has paid for it.
        empty["empty_round_probability"] = float(attendance_law(resolved.active.probabilities)[0])
    return summary.Participation(
        name=resolved.scenario.participation.name,
        num_silos=len(resolved.names),
        effective_m=resolved.premises.active,
        expected_inverse_m=1 / resolved.premises.active,
        observed_mean_m=float(sizes.mean()) if len(sizes) else None,
        observed_mean_inverse_m=float((1 / sizes).mean()) if len(sizes) else None,
        pull=(float(counts.min()), float(counts.max())),
        plan_covers="own rounds" if announced(resolved.active) else "all rounds",
        **empty,
    )


def _observed(outcome: Outcome) -> np.ndarray:
    """M_r of every round of every finished trial; in a deployed run a round may be paid for and not count."""
    if outcome.deployed is not None:
        return np.array(list(answered(outcome.results).values()), dtype=float)
    counts = Counter(
        (number, r)
        for number, trial in outcome.results.trials.items()
        for each in trial.statements
        for r in each.rounds
    )
    return np.array(list(counts.values()), dtype=float)


def answered(results: Results) -> dict[int, int]:
    """The number of silos whose answers counted, for each round of a deployed run."""
    counts = Counter({row.round: 0 for row in results.rows(record.AskedSilo)})
    counts.update(row.round for row in results.rows(record.AskedSilo) if row.left_out is None)
    return dict(sorted(counts.items()))


def _versions() -> dict[str, str]:
    """Versions of installed packages; a deployment's server may have no Ray."""
    result = {"python": platform.python_version(), "fedsim-isrl": installed.version()}
    for name in ("torch", "numpy", "ray", "dp-accounting"):
        with suppress(PackageNotFoundError):
            result[name] = version(name)
    return result


def warnings(outcome: Outcome) -> list[str]:
    """Warnings about the scenario, then about the trials' records; each once."""
    lines = [*outcome.resolved.warnings(admitted_of(outcome)), *of_scenario(outcome.resolved)]
    lines += [row.text for row in outcome.results.rows(record.Warned)]
    measured = outcome.results.rows(record.Measurement)
    for name in ("error", "loss"):
        if missing := [row for row in measured if value(row, name) is None]:
            first = f"first in trial {missing[0].trial}, round {missing[0].round}"
            share = f"{len(missing):,} of {len(measured):,} evaluations"
            lines.append(f"the test {name} is not a number in {share} ({first}): it is kept as null")
    return list(dict.fromkeys(lines))


def of_scenario(resolved: Resolved) -> list[str]:
    """Warnings that need no record: they hold before the run."""
    lines, shape = _delta(resolved), resolved.outline
    if not resolved.mechanism.private and resolved.scenario.privacy.epsilon is not None:
        lines.append("privacy.epsilon is ignored: mechanism none neither clips nor adds noise")
    if shape.unused:
        share = f"{shape.unused:,} of {shape.num_records:,} records ({shape.unused / shape.num_records:.0%})"
        lines.append(f"partition {resolved.scenario.partition.name} leaves out {share}: no silo has them")
    return lines


def _delta(resolved: Resolved) -> list[str]:
    """Publishing one of n units at random in full is (0, 1/n)-DP: above that, delta allows it."""
    silos = list(zip(resolved.names, resolved.sizes, resolved.deltas, strict=True))
    above = [(name, n, delta) for name, n, delta in silos if delta * n > 1]
    if not above or not resolved.mechanism.private:
        return []
    name, n, delta = max(above, key=lambda silo: silo[1] * silo[2])
    where = f"{len(above):,} of {len(silos):,} silos (silo {name}: delta {delta:g}, n = {n:,})"
    one = resolved.scenario.privacy.unit.name
    return [f"delta is above 1/n in {where}: it allows that a {one} is published in full; 1/n^2 is usual"]
