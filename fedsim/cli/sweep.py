"""`fedsim sweep`: run every combination, keep every finished cell, draw the figure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from fedsim.api.sweep_progress import sweep_display
from fedsim.cli.simulate import INTERRUPTED, LOST
from fedsim.cli.tables import shown, slug, sweep_table
from fedsim.curves.sweep_summary import CELLS
from fedsim.scenario.load import load_tree
from fedsim.sweeps.directory import failure_file
from fedsim.sweeps.job import job_of
from fedsim.sweeps.run import Sweep
from fedsim.sweeps.run import run as run_sweep


def run(path: Path, overrides: Sequence[str], out: Path | None, workers: int | None) -> int:
    """Sweep a scenario; the exit code: 0, or 1 if a cell failed.

    Raises:
        InputError: bad scenario, data or directory.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(soft_wrap=True, highlight=False)
    job = job_of(load_tree(path, overrides))
    directory = out or Path("runs") / slug(job.scenario.name)
    watch = partial(sweep_display, console)
    sweep = run_sweep(job, directory, workers, watch, lambda text: console.print(f"warning: {text}"))
    if sweep.interrupted:
        return _interrupted(console, sweep, directory)
    _report(console, sweep, directory)
    return 1 if sweep.results.failures else 0


def _interrupted(console: Console, sweep: Sweep, directory: Path) -> int:
    if sweep.lost:
        console.print(f"failed: {sweep.lost}", style="red", markup=False)
    kept = len(list((directory / CELLS).glob("*.json")))
    again = f"the same command with --out {directory} goes on from there"
    console.print(f"Interrupted: {kept} finished cells are kept; {again}.")
    return LOST if sweep.lost else INTERRUPTED


def _report(console: Console, sweep: Sweep, directory: Path) -> None:
    summary = sweep.summary
    console.print(sweep_table(summary), soft_wrap=False)
    for event, failure in sweep.results.failures:
        name, trial = sweep.job.title(event.place), event.cell.trial
        file = failure_file(event, directory).relative_to(directory)
        text = f"{failure.kind}: {name}, trial {trial}: {failure.message}; see {file}"
        console.print(text, style="red")
    if sweep.job.tuning_note:
        console.print(f"Privacy: {sweep.job.tuning_note}; summary.json says at what cost.")
    elif summary.tuning:
        console.print(f"Not private: {summary.privacy.not_private[0]}.")
    runs = summary.runs
    counts = f"{runs.made} cells run, {runs.from_cache} from the cache, {runs.failed} failed"
    console.print(f"{counts}, in {summary.wall_seconds:.1f} s")
    console.print(f"Wrote {shown(directory)}/ ({', '.join(sweep.files)})")
