"""`fedsim.simulate`: a scenario, run."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedsim.api.given import ScenarioLike, changes_of, one_run, resolved_of
from fedsim.api.progress import Watch, run_display, watching
from fedsim.api.run import Run
from fedsim.common.durable import remove_drafts
from fedsim.common.errors import InputError
from fedsim.common.files import UNFINISHED, check_free, unwritable
from fedsim.common.process import one_thread, undisturbed
from fedsim.common.serialise import canonical, mapping, to_yaml
from fedsim.data.dataset import Dataset
from fedsim.measure.objective import measure
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.plan import Admitted
from fedsim.report import page
from fedsim.report.outcome import NotKept, Observer, Outcome, Results, variants
from fedsim.report.record import Begun, Finished, Measurement, Record
from fedsim.report.run_directory import SECRET, data_of
from fedsim.report.summary import FILE
from fedsim.report.trackers import open_trackers
from fedsim.scenario.load import digests_of, relative
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, with_seed
from fedsim.simulation.code_version import code_version
from fedsim.simulation.failures import WorkerLost
from fedsim.simulation.host import preview, preview_evaluation
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import read

_RECORD, _SCENARIO, _BEGUN = "record.sqlite", "scenario.yaml", "begun"


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
    ((2, 19), 96)

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
    with kept(out, resolved, resume, complain) as results:
        # A refusal should not wait for Ray to start, nor for the last trial; trials differ where silos do.
        trials = range(resolved.scenario.trials if resolved.active else 1)
        admitted = [each for trial in trials for each in preview(resolved, trial)]
        for line in resolved.warnings(admitted[: len(resolved.names)]):
            complain(line)
        return _followed(resolved, admitted, results, watch, out, complain)


def _followed(
    resolved: Resolved,
    admitted: list[Admitted],
    results: Results,
    watch: Watch,
    out: Path | None,
    complain: Callable[[str], None],
) -> Run:
    start = time.perf_counter()
    trackers = open_trackers(resolved.scenario.report.trackers, True, complain)
    heterogeneity, end, files = None, None, digests_of(resolved.scenario)
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
    if not outcome.interrupted:
        shutil.rmtree(out / UNFINISHED, ignore_errors=True)
    return run


def _execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    if resolved.scenario.runtime.name == "ray":
        from fedsim.simulation.on_ray import execute
    else:
        from fedsim.simulation.trial import execute
    execute(resolved, results, observe)


@contextmanager
def kept(
    out: Path | None, resolved: Resolved, resume: bool, complain: Callable[[str], None]
) -> Iterator[Results]:
    """Results that append every finished trial to a record in `out`, a new directory or None; with `resume`,
    that of an unfinished run, whose trials they have. InputError: it cannot be used, or would come to
    something else.

    No other process uses `out` inside the block. Where nothing was kept it is not there afterwards.
    `complain` is called with a line about kept trials that are damaged, and are run again.
    """
    if out is None:
        yield Results()
        return
    folder = (_found(out) if resume else check_free(out)) / UNFINISHED
    missing = [each for each in folder.parent.parents if not each.exists()]  # from the inmost
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(exist_ok=resume)
            record = stack.enter_context(Record.open(folder / _RECORD, complain))
            stack.callback(_tidy, record, folder, missing)
            results = _results(record, folder, resolved, resume, complain)
        except (FileExistsError, BlockingIOError):
            hint = "another run is at work in it; name another directory"
            raise InputError("--out", str(out), hint) from None
        except OSError as error:
            if not resume:
                _remove(folder, missing)
            raise unwritable(out, error) from None
        yield results


def finished_in(out: Path) -> int:
    """The number of finished trials in the directory of an unfinished run that no process works in."""
    file = out / UNFINISHED / _RECORD
    return len(Record.read(file, lambda line: None).rows(Finished)) if file.is_file() else 0


def with_drawn(scenario: Scenario, out: Path | None) -> Scenario:
    """The scenario with the seed and the nonce that the unfinished run in `out` drew, where it gives none."""
    if out is None:
        raise InputError("resume", True, "needs out: the directory of the run that is to go on")
    kept = mapping(_found(out) / UNFINISHED / _SCENARIO, "scenario", "data:")
    own = scenario.model_fields_set
    return scenario.model_copy(update={k: kept.get(k) for k in ("seed", "nonce") if k not in own})


def _found(out: Path) -> Path:
    if not (out / UNFINISHED / _RECORD).is_file():
        done = (out / FILE).is_file()
        hint = "is complete; nothing is left of it to run" if done else "holds no run that can go on"
        raise InputError("--resume", str(out), hint)
    return out.resolve()


def _results(
    record: Record, folder: Path, resolved: Resolved, resume: bool, complain: Callable[[str], None]
) -> Results:
    made_of, results = _made_of(resolved), Results(record, folder)
    if not resume:
        scenario = to_yaml(relative(resolved.scenario.model_dump(mode="json", exclude_none=True), folder))
        (folder / _SCENARIO).write_text(SECRET + scenario, encoding="utf-8")
        record.append(_BEGUN, [made_of])
        return results
    remove_drafts(folder)
    if not record.rows(Begun):
        hint = "has lost what it was begun with, so that its trials may be of another run; start a new one"
        raise InputError("--resume", str(folder.parent), hint)
    different = "another scenario, or other data", "another version of the code"
    for before in record.rows(Begun):
        for old, new, what in zip(before, made_of, different, strict=True):
            if old != new:
                hint = f"was begun with {what}: its trials would not be of one run; start a new one"
                raise InputError("--resume", str(folder.parent), hint)
    results.recall(complain)
    return results


def _made_of(resolved: Resolved) -> Begun:
    """What determines the run's results: runs with equal ones have equal results."""
    tree = resolved.scenario.model_dump(mode="json", exclude_none=True)
    tree["runtime"].pop("address", None)
    files = list(digests_of(resolved.scenario).values())
    run = [run_digest(resolved, canonical(files), variant) for variant in variants(resolved)]
    asked = {key: value for key, value in tree.items() if key not in ("name", "description", "purpose")}
    digest = hashlib.sha256(canonical([asked, run, files]).encode()).hexdigest()
    return Begun(digest, code_version())


def _tidy(record: Record, folder: Path, made: list[Path]) -> None:
    """Leave nothing of a run that has nothing to go on from, nor of the folders that were made for it."""
    if not (record.rows(Finished) or record.damaged or (folder.parent / FILE).exists()):
        _remove(folder, made)


def _remove(folder: Path, made: list[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for each in (folder.parent, *made):
            each.rmdir()
