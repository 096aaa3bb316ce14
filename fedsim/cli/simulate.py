"""`fedsim simulate`: run, show progress, save, and print what came of it."""

from __future__ import annotations

import shlex
import signal
from datetime import datetime
from functools import partial
from pathlib import Path

from fedsim.api.given import resolved_of
from fedsim.api.progress import run_display
from fedsim.api.run import Run
from fedsim.api.simulate import follow
from fedsim.api.unfinished import kept_in, with_drawn
from fedsim.cli.app import DONE, FAILED, INTERRUPTED
from fedsim.cli.finished import print_failure, print_run
from fedsim.cli.output import Output
from fedsim.cli.tables import print_parameters, say, shown, slug
from fedsim.results.place import taken
from fedsim.results.privacy_statement import parameters
from fedsim.results.summary import FILE
from fedsim.scenario.model import Scenario
from fedsim.scenario.nonce import with_seed
from fedsim.simulation.failures import WorkerLost


def run(scenario: Scenario, out: Path | None, resume: Path | None, output: Output) -> int:
    """Simulate a scenario; the exit code.

    Args:
        scenario: of one run.
        out: a new directory; None makes one.
        resume: the directory of an unfinished run of it, instead.
        output: what is printed where.

    Raises:
        InputError: bad data or directory; nothing has been written.
        Refused: a silo does not accept the plan, or a request within it; nothing has been written.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end a run with what it has
    resolved = resolved_of(with_seed(scenario if resume is None else with_drawn(scenario, resume)))
    named = f"{slug(resolved.scenario.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    directory = resume or out or taken(Path("runs") / named)
    print_parameters(output.results, parameters(resolved).get("parameters"))
    complain = partial(output.errors.print, markup=False)
    try:
        done = follow(
            resolved, partial(run_display, output.progress), directory, complain, resume is not None
        )
    except KeyboardInterrupt:
        return _nothing(output, INTERRUPTED)
    except WorkerLost as error:
        print_failure(output.errors, str(error))
        return _nothing(output, FAILED)
    return _told(done, directory, output)


def _told(done: Run, directory: Path, output: Output) -> int:
    """Print what came of it; the exit code."""
    if done.failure:
        print_failure(output.errors, f"{done.failure}; {_kept(done, directory)}")
    elif done.interrupted:
        say(output.errors, f"Interrupted: {_kept(done, directory)}")
    if (directory / FILE).exists():
        print_run(output.results, done, directory)
        output.summary({"directory": str(directory), **done.summary.tree()})
    return FAILED if done.failure else INTERRUPTED if done.interrupted else DONE


def _kept(done: Run, directory: Path) -> str:
    """Which trials another process need not run again."""
    command = shlex.join(["fedsim", "simulate", "--resume", shown(directory)])
    count = len(kept_in(directory))
    return f"{count} of {done.summary.trials.asked} trials are complete and saved. To go on: {command}"


def _nothing(output: Output, code: int) -> int:
    say(output.errors, "Interrupted before anything was measured; nothing was saved.")
    return code
