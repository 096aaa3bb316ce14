"""What private tuning cost each silo, beside what the reported run costs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from fedsim.common.canonical import finite
from fedsim.common.errors import Refused
from fedsim.curves.sweep_summary import TunedCombination, TunedSilo, TuningLedger
from fedsim.protocol.limits import LIMITS
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import terms
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.job import Job
from fedsim.sweeps.kept import resolved_of
from fedsim.sweeps.private_tuning import Selection, silos_rounds
from silos.admission import admit
from silos.selection import AdmittedSelection

GUARANTEE = (
    "for each silo, all that it releases to tune one combination and one reported run with what was chosen "
    "are together (epsilon_total, delta)-DP with respect to replacing one of its records: a record trains "
    "candidates, scores them or is in the reported run, never two of these, so that epsilon_total is the "
    "largest of the three"
)


def ledger(job: Job, chosen: Mapping[int, int | None]) -> TuningLedger | None:
    """`privacy.tuning` of a summary, of the candidates chosen; None where nothing was tuned privately."""
    if job.tune is None or job.tune.private is None:
        return None
    private = {n: s for n, s in job.selections.items() if job.combinations[n].private}
    rows = [_row(job.combinations[n], s, chosen.get(n), job.reported_trials) for n, s in private.items()]
    return TuningLedger(
        note=job.tuning_note,
        guarantee=GUARANTEE,
        mechanism="gaussian: every candidate's run, and its number of misclassified records",
        fraction=job.tune.private.fraction,
        combinations=rows,
    )


def _row(
    combination: Combination, selection: Selection, chosen: int | None, trials: Sequence[int]
) -> TunedCombination:
    run = resolved_of(combination.candidates[chosen or 0].scenario)
    costs: Sequence[float | None] = [None] * len(run.names)
    if chosen is not None:
        costs = _run_epsilons(run, trials)
    return TunedCombination(
        varied=combination.varied,
        runs=len(selection.scenarios) * selection.repetitions,
        silos=[_silo(*each) for each in zip(selection.silos, run.sizes, costs, strict=True)],
    )


def _run_epsilons(run: Resolved, trials: Sequence[int]) -> list[float]:
    """epsilon_guaranteed of each silo in the reported run: the largest over trials, finished or not; 0 where
    its plan is refused, since then nothing is released.
    """
    largest = [0.0] * len(run.names)
    for trial in trials:
        with suppress(Refused):
            own = terms(run, run.names, silos_rounds(run, trial), run.mechanism)
            priced = admit(run.trace.plan, own, run.mechanism, LIMITS)
            largest = [max(old, new.epsilon_guaranteed) for old, new in zip(largest, priced, strict=True)]
    return largest


def _silo(silo: AdmittedSelection, n_run: int, run: float | None) -> TunedSilo:
    """`run` is None where nothing was reported."""
    return TunedSilo(
        name=silo.terms.name,
        n_tune=2 * silo.terms.half,
        n_run=n_run,
        delta=silo.terms.delta,
        epsilon_budget=finite(silo.terms.epsilon),
        noise_multiplier=silo.noise_multiplier,
        score_noise_multiplier=silo.score_noise_multiplier,
        epsilon_training=finite(silo.epsilon_training),
        epsilon_scores=finite(silo.epsilon_scores),
        epsilon_tuning=finite(silo.epsilon),
        epsilon_run=None if run is None else finite(run),
        epsilon_total=finite(max(silo.epsilon, 0.0 if run is None else run)),
    )
