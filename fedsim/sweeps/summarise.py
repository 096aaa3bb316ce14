"""From what a sweep measured to its summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedsim.curves.sweep_summary import (
    FORMAT,
    SHARED,
    CandidateRow,
    CombinationRow,
    FailureRow,
    Runs,
    SweepPrivacy,
    SweepSummary,
    Tuning,
)
from fedsim.results.privacy_statement import (
    ADJACENCY,
    CHOICE,
    GUARANTEE,
    UNIT,
    accountant,
    claim,
    not_private,
    notices,
)
from fedsim.results.silo_rows import finite, samplers
from fedsim.results.summarise import interval90
from fedsim.scenario.resolve import Resolved
from fedsim.scenario.sweep import TuneSection
from fedsim.simulation.failures import Failure
from fedsim.sweeps.cell import CellResult, cell_of
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.engine import Results, mean
from fedsim.sweeps.job import Job, Place
from fedsim.sweeps.kept import resolved_of
from fedsim.sweeps.keys import code_version
from fedsim.sweeps.private_tuning import Selection
from fedsim.sweeps.tuning_ledger import ledger

CHOICE_BUT = "the choice of all that was not tuned, candidate values included, where data was looked at"


def summarise(job: Job, results: Results, wall_seconds: float, interrupted: bool) -> SweepSummary:
    """The summary of a sweep, of what there is if it was interrupted."""
    ended = "finished with failures" if results.failures else "finished"
    return SweepSummary(
        format=FORMAT,
        scenario=job.scenario.name,
        status="interrupted" if interrupted else ended,
        trials=job.scenario.trials,
        runs=Runs(made=results.ran, from_cache=results.cached, failed=len(results.failures)),
        wall_seconds=round(wall_seconds, 3),
        error=next((row.result.error_name for row in results.rows), None),
        varied=job.varied,
        combinations=[_combination(job, results, number) for number in range(len(job.combinations))],
        failures=[_failure(job, event.place, failure) for event, failure in results.failures],
        tuning=_tuning(job, results),
        privacy=_privacy(job, results),
        code=code_version(),
    )


def _combination(job: Job, results: Results, number: int) -> CombinationRow:
    combination, chosen = job.combinations[number], results.chosen.get(number)
    found = [row.result for row in results.rows if row.place.combination == number]
    worst = max(found, key=lambda result: result.epsilon, default=None)
    return CombinationRow(
        varied=combination.varied,
        private=combination.private,
        chosen=combination.candidates[chosen].chosen if chosen is not None else None,
        epsilon_budget=_budget(combination),
        epsilon_guaranteed=_guaranteed(worst, job.selections.get(number)),
        costliest_silo=None if worst is None or not combination.private else worst.silo,
        noise_multiplier=None if worst is None else worst.noise_multiplier,
        trials=len(found),
        **_spread("test_error", found),
        **_spread("test_loss", found),
        seconds_per_run=float(np.mean([result.seconds for result in found])) if found else None,
    )


def _spread(name: str, results: Sequence[CellResult]) -> dict[str, Any]:
    values = np.array([getattr(result, name) for result in results])
    return {name: float(values.mean()) if len(values) else None, f"{name}_interval90": interval90(values)}


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
                **{job.tune.criterion: mean(values)},
            )
        )
    return Tuning(
        criterion=job.tune.criterion,
        repetitions=job.tune.repetitions,
        private=job.tune.private is not None,
        candidates=rows,
    )


def _privacy(job: Job, results: Results) -> SweepPrivacy:
    tuned = ledger(job, results.chosen)
    alone = " or, where it was tuned, with its tuning (see tuning)" if tuned else ""
    return SweepPrivacy(
        unit=UNIT,
        adjacency=ADJACENCY,
        guarantee=f"of each private run taken alone{alone}: {GUARANTEE}",
        **_how(job.combinations),
        not_private=list(dict.fromkeys([*_tuned_openly(job.tune), *_of_runs(job), *_together(job)])),
        **({"tuning": tuned} if tuned else {}),
    )


_HOW: dict[str, Callable[[Resolved], Sequence[str]]] = {
    "notices": notices,
    "mechanism": lambda run: [run.scenario.privacy.mechanism],
    "calibration": lambda run: [run.scenario.privacy.calibration],
    "sampler": samplers,
    "accountant": lambda run: [accountant(run)],
    "theorem": lambda run: [claim(run)["theorem"]] if claim(run) else [],
}


def _how(combinations: Sequence[Combination]) -> dict[str, list[str]]:
    """What a run's statement says of how it is private, over the private combinations, without repetition."""
    private = [combination.scenario for combination in combinations if combination.private]
    runs = [resolved_of(scenario) for scenario in private]
    return {
        part: list(dict.fromkeys(text for run in runs for text in say(run))) for part, say in _HOW.items()
    }


def _tuned_openly(tune: TuneSection | None) -> list[str]:
    """What a reader must know about fields that were chosen without noise."""
    if tune is None or tune.private:
        return []
    looked = "training" if tune.criterion == "final_train_loss" else "test"
    return [
        f"the choice of {', '.join(tune.grid)}: for each combination the values of least mean "
        f"{tune.criterion} over {tune.repetitions} runs, computed from all silos' {looked} "
        "records without noise"
    ]


def _of_runs(job: Job) -> list[str]:
    """What each run alone does not cover."""
    notes = []
    for combination in job.combinations:
        if combination.private:
            notes += not_private(combination.scenario)
        else:
            notes.append("all of the runs marked non-private, which neither clip nor add noise")
    if job.tune and job.tune.private:
        return [note.replace(CHOICE, CHOICE_BUT) for note in notes]
    return notes


def _together(job: Job) -> list[str]:
    """What the runs taken together do not cover."""
    tuned = " together with what was released to tune it" if job.tune and job.tune.private else ""
    repeated = (
        "the sweep as a whole: each run is one use of the records, and its guarantee is that of one run"
    )
    private = [one.scenario for c in job.combinations if c.private for one in c.candidates]
    shared = any(cell_of(scenario, 0, False).fold_key is not None for scenario in private)
    fields = {field for c in job.combinations for field in (*c.varied, *c.candidates[0].chosen)}
    seeds = "the noise of runs whose seed is varied: the seeds stand here"
    return [repeated + tuned, *[SHARED] * shared, *[seeds] * ("seed" in fields)]
