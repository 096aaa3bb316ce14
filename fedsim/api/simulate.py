"""`fedsim.simulate`: a scenario, run."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedsim.api.given import ScenarioLike, changes_of, one_run, resolved_of
from fedsim.api.progress import Watch, run_display, watching
from fedsim.api.run import Run
from fedsim.common.errors import InputError
from fedsim.common.files import to_resume
from fedsim.common.process import one_thread, undisturbed
from fedsim.common.serialise import canonical, mapping
from fedsim.data.dataset import Dataset
from fedsim.measure.objective import measure
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.plan import Admitted
from fedsim.report import page
from fedsim.report.outcome import NotKept, Observer, Outcome, Results, variants
from fedsim.report.record import Begun, Measurement
from fedsim.report.resume import opened
from fedsim.report.run_directory import data_of, scenario_text
from fedsim.report.trackers import open_trackers
from fedsim.scenario.load import digests_of
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, with_seed
from fedsim.simulation.code_version import code_version
from fedsim.simulation.failures import WorkerLost
from fedsim.simulation.host import preview, preview_evaluation
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import read


def simulate(
    scenario: ScenarioLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Observer | None = None,
    **short: Any,
) -> Run:
    """Train a private model across silos, in simulation.

    >>> run = simulate("quickstart", trials=2, epsilon=2.0, num_rounds=3, runtime="inprocess")
    >>> run.model.shape, len(run.ledger)
    ((2, 14), 96)

    Args:
        scenario: name of a shipped scenario, path of a YAML file, mapping, or `fedsim.Scenario`.
        overrides: {dotted field: value}, such as {"algorithm.step_size": 0.5}.
        algorithm: an object in the place of the scenario's; its class travels to Ray's processes by value.
        data: `fedsim.Frame` or `fedsim.Arrays`, records in memory that take the place of the scenario's
            data, and of its partition where they name their silos, unless one is given here.
        out: a new directory for the run; nothing is written without it. Trials are kept in it as they end.
        resume: `out` is of a run that was interrupted: its unfinished trials are run, to the same result.
        progress: a bar (None), nothing (False), lines without a screen (True), or a function of measurements.
        **short: fields by their last name where it is unambiguous: trials=3, epsilon=2.0.

    Returns:
        The run; after an interrupt (Ctrl-C, a notebook's stop button) what there is, `Run.interrupted` true.

    Raises:
        InputError: names the field, the value and what would be right.
        Refused: a silo does not accept the plan, or a request within it.
        KeyboardInterrupt, WorkerLost: interrupted, or a process of Ray ended, before anything was measured.
    """
    changes, place = changes_of(overrides, short), None if out is None else Path(out)
    single = one_run(scenario, changes)
    seeded = with_seed(with_drawn(single, place) if resume else single)
    resolved = resolved_of(seeded, algorithm, data, changes)
    show = partial(run_display, resolved=resolved)
    run = follow(resolved, lambda _: watching(progress, show), place, warnings.warn, resume)
    if run.failure:
        warnings.warn(run.failure, stacklevel=2)
    return run


def follow(
    resolved: Resolved, watch: Watch, out: Path | None, complain: Callable[[str], None], resume: bool = False
) -> Run:
    """Run a resolved scenario and, where `out` is a directory, save it; errors as of `simulate`.

    Args:
        out: a new directory, or with `resume` that of an unfinished run.
        complain: called with a line about odd numbers before round 0, about trackers that fail, and about
            kept trials that are damaged.
    """
    files = digests_of(resolved.scenario)
    with kept(out, resolved, files, resume, complain) as results:
        # A refusal should not wait for Ray to start, nor for the last trial; trials differ where silos do.
        trials = range(resolved.scenario.trials if resolved.active else 1)
        admitted = [each for trial in trials for each in preview(resolved, trial)]
        for line in resolved.warnings(admitted[: len(resolved.names)]):
            complain(line)
        return _followed(resolved, files, admitted, results, watch, out, complain)


def _followed(
    resolved: Resolved,
    files: Mapping[str, str],
    admitted: list[Admitted],
    results: Results,
    watch: Watch,
    out: Path | None,
    complain: Callable[[str], None],
) -> Run:
    start = time.perf_counter()
    trackers = open_trackers(resolved.scenario.report.trackers, True, complain)
    heterogeneity, end = None, None
    evaluated = preview_evaluation(resolved)
    try:
        trackers.start(resolved)
        with watch(resolved) as show:

            def observe(measurement: Measurement) -> None:
                show(measurement)
                trackers.measured(measurement)

            for measurement in results.rows(Measurement):  # of trials that an earlier process finished
                observe(measurement)
            _execute(resolved, results, observe)
        if resolved.scenario.report.heterogeneity:
            with one_thread():
                heterogeneity = measure(resolved, read(resolved, 0).silos)
    except (KeyboardInterrupt, WorkerLost, NotKept) as caught:
        if not results.rows(Measurement):
            raise
        end = caught
    with undisturbed():
        seconds, failure = time.perf_counter() - start, None if end is None else str(end) or None
        if isinstance(end, NotKept):
            failure = f"{out}: cannot be written ({end})"
        outcome = Outcome(
            resolved, results, seconds, end is not None, heterogeneity, admitted, None, evaluated, files
        )
        run = Run(data_of(outcome), failure)
        if out is not None:
            run = _saved(run, outcome, out)
        trackers.finish(outcome)
    return run


def _saved(run: Run, outcome: Outcome, out: Path) -> Run:
    """Write the run's directory; a failure is part of the result, and finished trials stay on disk."""
    try:
        page.save(outcome, out.resolve())
    except OSError as error:
        return replace(run, failure=run.failure or f"{out}: cannot be written ({error.strerror or error})")
    return run


def _execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    if resolved.scenario.runtime.name == "ray":
        from fedsim.simulation.on_ray import execute
    else:
        from fedsim.simulation.trial import execute
    execute(resolved, results, observe)


@contextmanager
def kept(
    out: Path | None,
    resolved: Resolved,
    files: Mapping[str, str],
    resume: bool,
    complain: Callable[[str], None],
) -> Iterator[Results]:
    """Results that append every finished trial to the record in `out` (`fedsim.report.resume`), a new
    directory or None; with `resume`, that of a run that has not ended, whose trials they have.

    InputError: it cannot be used, or would come to something else. `files` has the SHA-256 of the scenario's
    files, by field. `complain` is called with a line about kept trials that are damaged, and are run again.
    """
    if out is None:
        yield Results()
        return
    made_of, place = _made_of(resolved, list(files.values())), out.resolve()
    scenario = scenario_text(resolved, files, place)
    with opened(out, made_of, complain, resume, scenario) as record:
        results = Results(record, place)
        results.recall(complain)
        yield results


def with_drawn(scenario: Scenario, out: Path | None) -> Scenario:
    """The scenario with the seed and the nonce that the unfinished run in `out` drew, where it gives none."""
    if out is None:
        raise InputError("resume", True, "needs out: the directory of the run that is to go on")
    kept = mapping(to_resume(out), "scenario", "data:")
    own = scenario.model_fields_set
    return scenario.model_copy(update={k: kept.get(k) for k in ("seed", "nonce") if k not in own})


def _made_of(resolved: Resolved, files: list[str]) -> Begun:
    """What determines the run's results: runs with equal ones have equal results."""
    tree = resolved.scenario.model_dump(mode="json", exclude_none=True)
    tree["runtime"].pop("address", None)
    run = [run_digest(resolved, canonical(files), variant) for variant in variants(resolved)]
    apart = ("name", "description", "purpose", "files")
    asked = {key: value for key, value in tree.items() if key not in apart}
    digest = hashlib.sha256(canonical([asked, run, files]).encode()).hexdigest()
    return Begun("simulation", digest, code_version())
