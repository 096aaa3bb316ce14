"""`fedsim simulate`: run, show progress, save, and print what came of it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from fedsim.cli.progress import progress
from fedsim.cli.tables import metrics_line, print_notices, print_parameters, shown, silo_table
from fedsim.common.errors import InputError
from fedsim.measure.heterogeneity import measure
from fedsim.protocol.terms import Admitted
from fedsim.report.page import FIGURES, write_page
from fedsim.report.remarks import remarks
from fedsim.report.trackers import open_trackers
from fedsim.results.outcome import Measurement, Observer, Outcome, Results
from fedsim.results.summary import summarise
from fedsim.results.write import check_free, write
from fedsim.scenario.load import load
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.lost import WorkerLost
from fedsim.simulation.price import preview

INTERRUPTED, LOST = 130, 1


def run(path: Path, overrides: Sequence[str], out: Path | None) -> int:
    """Simulate a scenario; the exit code.

    Raises:
        InputError: bad scenario, data or directory; nothing has been written.
        Refused: a silo does not accept the plan, or a request within it; nothing has been written.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end a run with what it has
    console, results = Console(), Results()
    start, ended, heterogeneity, admitted = time.perf_counter(), 0, None, list[Admitted]()
    resolved = resolve(_without_sweep(load(path, overrides)))
    directory = check_free(out or _default_directory(resolved.scenario.name))
    trackers = open_trackers(resolved.scenario.report.trackers, True, partial(console.print, markup=False))
    print_parameters(console, resolved)
    try:
        admitted = _price(resolved)  # a refusal should not wait for Ray to start, nor for the last trial
        trackers.start(resolved)
        with progress(console, resolved) as show:
            _execute(resolved, results, _both(show, trackers.measured))
        heterogeneity = measure(resolved) if resolved.scenario.report.heterogeneity else None
    except KeyboardInterrupt:
        ended = INTERRUPTED
    except WorkerLost as error:
        ended = LOST
        console.print(f"failed: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    if ended and not results.measurements:
        console.print("Interrupted before anything was measured; nothing was saved.")
        return ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # saving takes a moment; a second Ctrl-C must not undo it
    outcome = Outcome(resolved, results, time.perf_counter() - start, ended != 0, heterogeneity, admitted)
    files = write(outcome, directory)
    page = write_page(directory)
    trackers.finish(outcome)
    _print(console, outcome, directory, [*sorted([*files, page.name]), f"{FIGURES}/"])
    return ended


def _without_sweep(scenario: Scenario) -> Scenario:
    if scenario.sweep is not None:
        expected = "run it by `fedsim sweep`, or leave the section out by --set sweep=null"
        raise InputError("scenario.sweep", sorted(scenario.sweep.model_fields_set), expected)
    return scenario


def _price(resolved: Resolved) -> list[Admitted]:
    """Admission of every trial; only partial participation makes trials differ."""
    trials = range(resolved.scenario.trials if resolved.active else 1)
    return [admitted for trial in trials for admitted in preview(resolved, trial)]


def _execute(resolved: Resolved, results: Results, observe: Observer) -> None:
    if resolved.scenario.runtime.name == "ray":
        from fedsim.simulation.on_ray import execute
    else:
        from fedsim.simulation.in_process import execute
    execute(resolved, results, observe)


def _both(first: Observer, second: Observer) -> Observer:
    def observe(measurement: Measurement) -> None:
        first(measurement)
        second(measurement)

    return observe


def _default_directory(name: str) -> Path:
    return Path("runs") / f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"


def slug(name: str) -> str:
    """A scenario's name as the name of a directory."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


def _print(console: Console, outcome: Outcome, directory: Path, files: Sequence[str]) -> None:
    summary = summarise(outcome)
    if outcome.interrupted:
        trials = summary["trials"]
        console.print(
            f"Interrupted: {trials['finished']} of {trials['asked']} trials are complete and saved."
        )
    print_notices(console, summary["privacy"]["notices"])
    console.print(metrics_line(summary))
    for line in remarks(summary):
        console.print(line, markup=False, highlight=False)
    if summary["privacy"]["silos"]:
        console.print("", silo_table(summary["privacy"]["silos"]), "", sep="\n")
    console.print(f"Wrote {shown(directory)}/ ({', '.join(files)})", soft_wrap=True, highlight=False)
