"""`fedsim simulate`: run, show progress, save, and print what came of it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from fedsim.api.given import one_run, resolved_of
from fedsim.api.progress import run_display
from fedsim.api.simulate import follow
from fedsim.cli.finished import print_failure, print_run
from fedsim.cli.tables import print_parameters, slug
from fedsim.results.place import check_free
from fedsim.results.privacy_statement import parameters
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
        print_failure(console, str(error))
        return _nothing(console, LOST)
    print_run(console, done, directory)
    return LOST if done.failure else INTERRUPTED if done.interrupted else 0


def _nothing(console: Console, code: int) -> int:
    console.print("Interrupted before anything was measured; nothing was saved.")
    return code
