"""A sweep's summary and privacy statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from operator import attrgetter

import numpy as np

from fedsim.common.errors import Refused
from fedsim.common.serialise import finite
from fedsim.privacy.unit_words import guaranteed
from fedsim.protocol.division import Division, together
from fedsim.protocol.plan import Admitted
from fedsim.report import privacy_statement, sweep_summary
from fedsim.report.outcome import mean
from fedsim.report.privacy_statement import CHOICE, how, not_private
from fedsim.report.silo_rows import admitted_rows
from fedsim.report.summarise import spreads
from fedsim.report.summary import (
    FORMAT,
    CombinationRow,
    Privacy,
    SiloRow,
    TunedCombination,
    TuningLedger,
)
from fedsim.report.sweep_summary import BaselineGroup, FailureRow, SweepSummary
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.code_version import code_version
from fedsim.simulation.host import agreed_terms, preview
from fedsim.simulation.sweeps.cell import cell_of, resolved_of
from fedsim.simulation.sweeps.combinations import Combination
from fedsim.simulation.sweeps.engine import Event, SweepResults
from fedsim.simulation.sweeps.job import Job, Selection


def summarise(
    job: Job, results: SweepResults, baselines: list[BaselineGroup], wall_seconds: float, interrupted: bool
) -> SweepSummary:
    """The summary of a sweep, of what there is if it was interrupted."""
    report = job.scenario.report
    ended = "finished with failures" if results.failures else "finished"
    return SweepSummary(
        format=FORMAT,
        scenario=job.scenario.name,
        status="interrupted" if interrupted else ended,
        trials=job.scenario.trials,
        runs=sweep_summary.Runs(made=results.ran, from_cache=results.cached, failed=len(results.failures)),
        wall_seconds=round(wall_seconds, 3),
        metric=report.metric,
        **({"against": report.against} if report.against else {}),
        error_name=next((row.result.error_name for row in results.rows), None),
        varied=job.varied,
        combinations=[_combination(job, results, number) for number in range(len(job.combinations))],
        baselines=baselines,
        failures=[_failure(job, event) for event in results.failures],
        tuning=_tuning(job, results),
        privacy=statement(job, results.chosen),
        code=code_version(),
    )


def _combination(job: Job, results: SweepResults, number: int) -> CombinationRow:
    combination, chosen = job.combinations[number], results.chosen.get(number)
    rows = [row for row in results.rows if row.place.combination == number]
    finished = [row.result for row in rows]
    costliest = max(rows, key=attrgetter("result.epsilon"), default=None)
    worst, selection = costliest and costliest.result, job.selections.get(number)
    tuning = [silo.epsilon for silo in selection.parts.silos] if selection else []
    return CombinationRow(
        varied=combination.varied,
        private=combination.private,
        chosen=combination.candidates[chosen].chosen if chosen is not None else None,
        epsilon_budget=_budget(combination),
        epsilon_guaranteed=None if worst is None else finite(max([worst.epsilon, *tuning])),  # together
        costliest_silo=None if worst is None or not combination.private else worst.silo,
        noise_multiplier=None if worst is None else worst.noise_multiplier,
        **({} if costliest is None else _claim(job, costliest)),
        trials=len(finished),
        **spreads(finished),
        seconds_per_run=float(np.mean([result.seconds for result in finished])) if finished else None,
    )


def _claim(job: Job, row: Event) -> dict[str, float]:
    """Claimed and attainable epsilon of a run's costliest silo; {} without a claim."""
    resolved = resolved_of(job.candidate(row.place).scenario)
    prescribed = resolved.prescribed
    if prescribed is None or prescribed.theorem is None:
        return {}
    own = agreed_terms(resolved, row.place.trial)[resolved.names.index(row.result.silo)]
    (found,) = admitted_rows(resolved, [Admitted(own, row.result.noise_multiplier, row.result.epsilon, 0)])
    return {
        key: cost for key, cost in found.tree().items() if key in ("epsilon_claimed", "epsilon_attainable")
    }


def _budget(combination: Combination) -> float | None:
    """The largest of the silos' budgets; None without a guarantee, or without a limit."""
    given = combination.scenario.privacy.given_epsilons if combination.private else ()
    return max((each for each in given if isinstance(each, float)), default=None)


def _failure(job: Job, event: Event) -> FailureRow:
    varied, chosen = job.combinations[event.place.combination].varied, job.candidate(event.place).chosen
    return FailureRow(varied=varied, chosen=chosen, trial=event.place.trial, **asdict(event.failure))


def _tuning(job: Job, results: SweepResults) -> sweep_summary.Tuning | None:
    if job.tune is None:
        return None
    rows = [
        sweep_summary.CandidateRow(
            varied=job.combinations[number].varied,
            private=job.combinations[number].private,
            candidate=job.combinations[number].candidates[candidate].chosen,
            values=values,
            selected=results.chosen.get(number) == candidate,
            **{str(job.tune.criterion): mean(values)},
        )
        for (number, candidate), values in results.criterion.items()
    ]
    return sweep_summary.Tuning(
        criterion=job.tune.criterion or "final_train_loss",
        repetitions=job.tune.repetitions,
        private=job.tune.private is not None,
        scored_by=job.tune.private.metric if job.tune.private else None,
        weighing=job.scenario.privacy.unit.weighing if job.tune.private else None,
        candidates=rows,
    )


CHOICE_BUT = "the choice of all that was not tuned, candidate values included, where data was looked at"


def statement(job: Job, chosen: Mapping[int, int | None]) -> Privacy:
    """The `privacy` part of a summary; `chosen`: each combination's candidate, None where all failed.

    What is guaranteed is of the private runs, and where there is none of all.
    """
    tuned, private = ledger(job, chosen), [one for one in job.combinations if one.private]
    parts = privacy_statement.together(
        [how(resolved_of(one.scenario)) for one in private or job.combinations]
    )
    alone = " or, where it was tuned, with its tuning (see tuning)" if tuned else ""
    if private:
        parts["guarantee"] = f"of each private run taken alone{alone}: {parts['guarantee']}"
    return Privacy(
        not_private=list(dict.fromkeys([*_tuned_openly(job), *_of_runs(job), *_together(job)])),
        **parts,
        **({"tuning": tuned} if tuned else {}),
    )


def _tuned_openly(job: Job) -> list[str]:
    """A line about fields that were chosen without noise."""
    tune = job.tune
    if tune is None or tune.private:
        return []
    looked = "training" if tune.criterion == "final_train_loss" else "test"
    return [
        f"the choice of {', '.join(job.tuned)}: for each combination the values of least mean "
        f"{tune.criterion} over {tune.repetitions} runs, computed from all silos' {looked} "
        "records without noise"
    ]


def _of_runs(job: Job) -> list[str]:
    """Releases that each run's guarantee does not cover."""
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
    """Releases that the runs' guarantees do not cover when they are composed."""
    tuned = " together with what was released to tune it" if job.tune and job.tune.private else ""
    whole = "the sweep as a whole: each run is one use of the records, and its guarantee is that of one run"
    private = [one.scenario for c in job.combinations if c.private for one in c.candidates]
    shared = any(cell_of(scenario, 0, False).fold_key is not None for scenario in private)
    fields = {field for c in job.combinations for field in (*c.varied, *job.tuned)}
    seeds = "the noise of runs whose seed is varied: the seeds stand here"
    return [whole + tuned, *[sweep_summary.SHARED] * shared, *[seeds] * ("seed" in fields)]


GUARANTEE = (
    "for each {silo}, all that it releases to tune one combination and one reported run with what was chosen "
    "are together (epsilon_total, delta)-DP with respect to {change}: a {unit} trains "
    "candidates, scores them or is in the reported run, never two of these, so that epsilon_total is the "
    "largest of the three"
)


_SCORES = {
    "error": "number of misclassified units",
    "log_loss": "sum of log losses, of probabilities held to declared bounds",
    "brier": "sum of Brier scores",
    "auc": "histogram of classes and predicted probabilities",
}


def ledger(job: Job, chosen: Mapping[int, int | None]) -> TuningLedger | None:
    """`privacy.tuning` of a summary, of the candidates chosen; None where nothing was tuned privately."""
    if job.tune is None or job.tune.private is None:
        return None
    private = {n: s for n, s in job.selections.items() if job.combinations[n].private}
    rows = [_row(job.combinations[n], s, chosen.get(n), job.reported_trials) for n, s in private.items()]
    told = dict.fromkeys(resolved_of(job.combinations[n].scenario).words for n in private)
    return TuningLedger(
        note=job.tuning_note,
        guarantee="; or ".join(guaranteed(GUARANTEE, each) for each in told),
        mechanism=f"gaussian: every candidate's run, and its {_SCORES[job.tune.private.metric]}",
        fraction=job.tune.private.fraction,
        combinations=rows,
    )


def _row(
    combination: Combination, selection: Selection, chosen: int | None, trials: Sequence[int]
) -> TunedCombination:
    run = resolved_of(combination.candidates[chosen or 0].scenario)
    costs = [None] * len(run.names) if chosen is None else _run_epsilons(run, trials)
    return TunedCombination(
        varied=combination.varied,
        runs=len(selection.scenarios) * selection.repetitions,
        silos=[_silo(*each) for each in zip(selection.parts.silos, run.sizes, costs, strict=True)],
    )


def _run_epsilons(run: Resolved, trials: Sequence[int]) -> list[float]:
    """epsilon_guaranteed of each silo in the reported run: the largest over trials, finished or not; 0 where
    its plan is refused, since then nothing is released.
    """
    largest = [0.0] * len(run.names)
    for trial in trials:
        with suppress(Refused):
            costs = [each.epsilon_guaranteed for each in preview(run, trial)]
            largest = list(map(max, largest, costs))
    return largest


def _silo(silo: Division, n_run: int, run: float | None) -> SiloRow:
    """`run` is None where nothing was reported."""
    training, scores = silo["candidates"], silo["scores"]
    return SiloRow(
        name=training.terms.name,
        n_tune=2 * training.terms.n,
        n_run=n_run,
        delta=training.terms.delta,
        epsilon_budget=finite(training.terms.epsilon),
        noise_multiplier=training.noise_multiplier,
        score_noise_multiplier=scores.noise_multiplier,
        epsilon_training=finite(training.epsilon_guaranteed),
        epsilon_scores=finite(scores.epsilon_guaranteed),
        epsilon_tuning=finite(silo.epsilon),
        epsilon_run=None if run is None else finite(run),
        epsilon_total=finite(together([silo.epsilon, *([] if run is None else [run])])),
    )
