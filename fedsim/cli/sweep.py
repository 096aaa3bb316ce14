"""`fedsim sweep`: run every combination, keep every finished cell, draw the figure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedsim.api.sweep_progress import sweep_display
from fedsim.cli.app import DONE, FAILED, INTERRUPTED
from fedsim.cli.output import Output
from fedsim.cli.tables import print_notices, say, shown, slug, sweep_table
from fedsim.curves.claims import true_epsilons
from fedsim.curves.sweep_summary import CELLS
from fedsim.sweeps.directory import failure_file
from fedsim.sweeps.job import job_of
from fedsim.sweeps.run import Sweep
from fedsim.sweeps.run import run as run_sweep


def run(tree: Mapping[str, Any], out: Path | None, workers: int | None, output: Output) -> int:
    """Sweep a scenario, given as nested mappings; the exit code.

    Raises:
        InputError: bad scenario, data or directory.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = job_of(tree)
    directory = out or Path("runs") / slug(job.scenario.name)
    watch = partial(sweep_display, output.progress)
    sweep = run_sweep(job, directory, workers, watch, lambda text: say(output.errors, f"warning: {text}"))
    if sweep.interrupted:
        return _interrupted(output.errors, sweep, directory)
    _failures(output.errors, sweep, directory)
    _report(output.results, sweep, directory)
    output.summary({"directory": str(directory), **sweep.summary.tree()})
    return FAILED if sweep.results.failures else DONE


def _interrupted(console: Console, sweep: Sweep, directory: Path) -> int:
    if sweep.lost:
        say(console, f"failed: {sweep.lost}", "red")
    kept = len(list((directory / CELLS).glob("*.json")))
    again = f"the same command with --out {directory} goes on from there"
    say(console, f"Interrupted: {kept} finished cells are kept; {again}.")
    return FAILED if sweep.lost else INTERRUPTED


def _failures(console: Console, sweep: Sweep, directory: Path) -> None:
    for event, failure in sweep.results.failures:
        name, trial = sweep.job.title(event.place), event.cell.trial
        file = failure_file(event, directory).relative_to(directory)
        text = f"{failure.kind}: {name}, trial {trial}: {failure.message}; see {file}"
        say(console, text, "red")


def _report(console: Console, sweep: Sweep, directory: Path) -> None:
    summary = sweep.summary
    print_notices(console, true_epsilons(summary))
    console.print(sweep_table(summary))
    if sweep.job.tuning_note:
        say(console, f"Privacy: {sweep.job.tuning_note}; summary.json says at what cost.")
    elif summary.tuning:
        say(console, f"Not private: {summary.privacy.not_private[0]}.")
    runs = summary.runs
    counts = f"{runs.made} cells run, {runs.from_cache} from the cache, {runs.failed} failed"
    say(console, f"{counts}, in {summary.wall_seconds:.1f} s")
    say(console, f"Wrote {shown(directory)}/ ({', '.join(sweep.files)})")
