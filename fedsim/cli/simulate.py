"""`fedsim simulate`: run, show progress, save, and print what came of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from fedsim.api.given import one_run, resolved_of
from fedsim.api.progress import run_display
from fedsim.api.run import Run
from fedsim.api.simulate import follow
from fedsim.cli.tables import print_notices, print_parameters, print_silos, say, shown
from fedsim.report.page import listing
from fedsim.report.remarks import remarks, result_line
from fedsim.results.privacy_statement import parameters
from fedsim.results.write import check_free
from fedsim.scenario.load import load
from fedsim.simulation.failures import WorkerLost

INTERRUPTED, LOST = 130, 1


def run(path: Path, overrides: Sequence[str], out: Path | None) -> int:
    """Simulate a scenario; the exit code.

    Raises:
        InputError: bad scenario, data or directory; nothing has been written.
        Refused: a silo does not accept the plan, or a request within it; nothing has been written.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end a run with what it has
    console = Console()
    resolved = resolved_of(one_run(load(path, overrides)))
    named = f"{slug(resolved.scenario.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    directory = check_free(out or Path("runs") / named)
    print_parameters(console, parameters(resolved).get("parameters"))
    try:
        done = follow(
            resolved, partial(run_display, console), directory, partial(console.print, markup=False)
        )
    except KeyboardInterrupt:
        return _nothing(console, INTERRUPTED)
    except WorkerLost as error:
        _print_failure(console, str(error))
        return _nothing(console, LOST)
    _print(console, done, directory)
    return LOST if done.failure else INTERRUPTED if done.interrupted else 0


def _nothing(console: Console, code: int) -> int:
    console.print("Interrupted before anything was measured; nothing was saved.")
    return code


def _print_failure(console: Console, failure: str) -> None:
    say(console, f"failed: {failure}", "red")


def slug(name: str) -> str:
    """A scenario's name as the name of a directory."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


def _print(console: Console, done: Run, directory: Path) -> None:
    summary = done.summary
    if done.failure:
        _print_failure(console, done.failure)
    if done.interrupted:
        trials = summary.trials
        console.print(f"Interrupted: {trials.finished} of {trials.asked} trials are complete and saved.")
    print_notices(console, summary.privacy.notices)
    console.print(result_line(summary))
    for line in remarks(summary):
        console.print(line, markup=False, highlight=False)
    if summary.privacy.silos:
        console.print()
        print_silos(console, summary.privacy.silos)
        console.print()
    files = ", ".join(listing(directory))
    say(console, f"Wrote {shown(directory)}/ ({files})")
