"""The privacy statement of a sweep: a run's, over all combinations, and what private tuning cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from fedsim.common.errors import Refused
from fedsim.common.serialise import finite
from fedsim.mechanisms.registry import GAUSSIAN, MECHANISMS
from fedsim.protocol.limits import LIMITS
from fedsim.report.sweep_summary import SHARED, SweepPrivacy, TunedCombination, TunedSilo, TuningLedger
from fedsim.results.privacy_statement import ADJACENCY, CHOICE, how, not_private
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import terms
from fedsim.sweeps.cell import cell_of, resolved_of
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.job import Job
from fedsim.sweeps.private_tuning import Selection, silos_rounds
from silos.admission import admit
from silos.selection import AdmittedSelection

CHOICE_BUT = "the choice of all that was not tuned, candidate values included, where data was looked at"


def statement(job: Job, chosen: Mapping[int, int | None]) -> SweepPrivacy:
    """The `privacy` part of a summary; `chosen`: each combination's candidate, None where all failed."""
    tuned = ledger(job, chosen)
    alone = " or, where it was tuned, with its tuning (see tuning)" if tuned else ""
    private = [MECHANISMS[one.scenario.privacy.mechanism] for one in job.combinations if one.private]
    used = list(dict.fromkeys(private)) or [GAUSSIAN]
    guarantees = "; ".join(
        f"{mechanism.name}: {mechanism.guarantee}" if len(used) > 1 else mechanism.guarantee
        for mechanism in used
    )
    return SweepPrivacy(
        unit=", ".join(dict.fromkeys(mechanism.unit for mechanism in used)),
        adjacency=ADJACENCY,
        guarantee=f"of each private run taken alone{alone}: {guarantees}",
        **_how(job.combinations),
        not_private=list(dict.fromkeys([*_tuned_openly(job), *_of_runs(job), *_together(job)])),
        **({"tuning": tuned} if tuned else {}),
    )


_HOW = ("notices", "mechanism", "calibration", "sampler", "accountant", "theorem")


def _how(combinations: Sequence[Combination]) -> dict[str, list[str]]:
    """What the statements of the private combinations say of how they are private, each text once."""
    found: dict[str, dict[str, None]] = {part: {} for part in _HOW}
    for scenario in (combination.scenario for combination in combinations if combination.private):
        said = how(resolved_of(scenario)) | {"calibration": scenario.privacy.calibration}
        for part in _HOW:
            texts = said.get(part, [])
            found[part] |= dict.fromkeys([texts] if isinstance(texts, str) else texts)
    return {part: list(texts) for part, texts in found.items()}


def _tuned_openly(job: Job) -> list[str]:
    """What a reader must know about fields that were chosen without noise."""
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
    fields = {field for c in job.combinations for field in (*c.varied, *job.tuned)}
    seeds = "the noise of runs whose seed is varied: the seeds stand here"
    return [repeated + tuned, *[SHARED] * shared, *[seeds] * ("seed" in fields)]


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
