"""The privacy statement of a sweep: a run's, over all combinations, and what is not covered by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsim.curves.sweep_summary import SHARED, SweepPrivacy
from fedsim.mechanisms.registry import GAUSSIAN, MECHANISMS
from fedsim.results.privacy_statement import ADJACENCY, CHOICE, how, not_private
from fedsim.sweeps.cell import cell_of
from fedsim.sweeps.combinations import Combination
from fedsim.sweeps.job import Job
from fedsim.sweeps.kept import resolved_of
from fedsim.sweeps.tuning_ledger import ledger

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
