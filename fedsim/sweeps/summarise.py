"""From what a sweep measured to its summary."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite

import numpy as np

from fedsim.common.serialise import finite
from fedsim.privacy import attainable
from fedsim.report.sweep_summary import (
    FORMAT,
    BaselineGroup,
    CandidateRow,
    CombinationRow,
    FailureRow,
    Runs,
    SweepSummary,
    Tuning,
)
from fedsim.results.record import CellResult
from fedsim.results.silo_rows import has_gap
from fedsim.results.summarise import spreads
from fedsim.simulation.failures import Failure
from fedsim.sweeps.cell import code_version, resolved_of
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.engine import Results, Row, mean
from fedsim.sweeps.job import Job, Place
from fedsim.sweeps.private_tuning import Selection, silos_rounds
from fedsim.sweeps.sweep_statement import statement


def summarise(
    job: Job, results: Results, baselines: list[BaselineGroup], wall_seconds: float, interrupted: bool
) -> SweepSummary:
    """The summary of a sweep, of what there is if it was interrupted."""
    ended = "finished with failures" if results.failures else "finished"
    return SweepSummary(
        format=FORMAT,
        scenario=job.scenario.name,
        status="interrupted" if interrupted else ended,
        trials=job.scenario.trials,
        runs=Runs(made=results.ran, from_cache=results.cached, failed=len(results.failures)),
        wall_seconds=round(wall_seconds, 3),
        metric=job.scenario.report.metric,
        error_name=next((row.result.error_name for row in results.rows), None),
        varied=job.varied,
        combinations=[_combination(job, results, number) for number in range(len(job.combinations))],
        baselines=baselines,
        failures=[_failure(job, event.place, failure) for event, failure in results.failures],
        tuning=_tuning(job, results),
        privacy=statement(job, results.chosen),
        code=code_version(),
    )


def _combination(job: Job, results: Results, number: int) -> CombinationRow:
    combination, chosen = job.combinations[number], results.chosen.get(number)
    rows = [row for row in results.rows if row.place.combination == number]
    found, costliest = [row.result for row in rows], max(rows, key=_cost, default=None)
    worst = costliest and costliest.result
    return CombinationRow(
        varied=combination.varied,
        private=combination.private,
        chosen=combination.candidates[chosen].chosen if chosen is not None else None,
        epsilon_budget=_budget(combination),
        epsilon_guaranteed=_guaranteed(worst, job.selections.get(number)),
        costliest_silo=None if worst is None or not combination.private else worst.silo,
        noise_multiplier=None if worst is None else worst.noise_multiplier,
        **({} if costliest is None else _claim(job, costliest)),
        trials=len(found),
        **spreads(found),
        seconds_per_run=float(np.mean([result.seconds for result in found])) if found else None,
    )


def _cost(row: Row) -> float:
    return row.result.epsilon


def _claim(job: Job, row: Row) -> dict[str, float]:
    """What is claimed for the silo that a run costs most, and what it costs at least; {} without a claim."""
    combination = job.combinations[row.place.combination]
    resolved = resolved_of(combination.candidates[row.place.candidate].scenario)
    prescribed = resolved.prescribed
    if prescribed is None or prescribed.claimed_epsilons is None:
        return {}
    silo = resolved.names.index(row.result.silo)
    found = {"epsilon_claimed": prescribed.claimed_epsilons[silo]}
    if has_gap(resolved) and isfinite(row.result.epsilon):
        census = resolved.trace.plan.census(silos_rounds(resolved, row.place.trial)[silo])
        case = resolved.sizes[silo], row.result.noise_multiplier, resolved.deltas[silo]
        found["epsilon_attainable"] = attainable.epsilon(census, *case)
    return found


def _guaranteed(worst: CellResult | None, selection: Selection | None) -> float | None:
    """Of tuning and run together; None if nothing was reported, or nothing bounds it."""
    if worst is None:
        return None
    tuning = [silo.epsilon for silo in selection.silos] if selection else []
    return finite(max([worst.epsilon, *tuning]))


def _budget(combination: Combination) -> float | None:
    """The largest of the silos' budgets; None without a guarantee, or without a limit."""
    epsilon = combination.scenario.privacy.epsilon
    if not combination.private or epsilon is None or epsilon == "unlimited":
        return None
    if isinstance(epsilon, float | int):
        return float(epsilon)
    return float(max(epsilon.values() if isinstance(epsilon, dict) else epsilon))


def _failure(job: Job, place: Place, failure: Failure) -> FailureRow:
    combination = job.combinations[place.combination]
    chosen = combination.candidates[place.candidate].chosen
    return FailureRow(varied=combination.varied, chosen=chosen, trial=place.trial, **asdict(failure))


def _tuning(job: Job, results: Results) -> Tuning | None:
    if job.tune is None:
        return None
    rows = []
    for (number, candidate), values in results.criterion.items():
        combination = job.combinations[number]
        rows.append(
            CandidateRow(
                varied=combination.varied,
                private=combination.private,
                candidate=combination.candidates[candidate].chosen,
                values=values,
                selected=results.chosen.get(number) == candidate,
                **{str(job.tune.criterion): mean(values)},
            )
        )
    return Tuning(
        criterion=job.tune.criterion or "final_train_loss",
        repetitions=job.tune.repetitions,
        private=job.tune.private is not None,
        candidates=rows,
    )
