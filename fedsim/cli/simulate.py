"""`fedsim simulate`: run, show progress, save, and print what came of it."""

from __future__ import annotations

import shlex
import signal
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.app import (
    DONE,
    FAILED,
    INTERRUPTED,
    RUNS,
    SCENARIO,
    Address,
    DataDir,
    Overrides,
    Quiet,
    SummaryAsJson,
    app,
    data_from,
    fail,
    on_runtime,
    plain_errors,
    scenarios,
)
from fedsim.cli.output import Output, print_failure, print_parameters, print_run, say, shown, slug

if TYPE_CHECKING:
    from fedsim.api.run import Run
    from fedsim.scenario.model import Scenario


@app.command(rich_help_panel=RUNS)
def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --resume.", autocompletion=scenarios),
    ] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME-TIME.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Resume an interrupted run: its unfinished trials."),
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inprocess; overrides the scenario.")] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Train a private model across silos and write the run directory."""
    changes = [*(overrides or []), *on_runtime(runtime, address)]
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        path = early.scenario_of(resume) if scenario is None and resume is not None else scenario
        if path is None:
            fail("error: SCENARIO: name one, or --resume RUN")
        if resume is not None and out is not None:
            fail("error: --out: --resume RUN goes on in RUN: leave --out out")
        loaded = early.single(path, changes, out)
        raise typer.Exit(_run(loaded, out, resume, Output(quiet, as_json)))


def _run(scenario: Scenario, out: Path | None, resume: Path | None, output: Output) -> int:
    """Simulate a scenario in a new directory, or go on with the unfinished run of it; the exit code."""
    from fedsim.api.given import resolved_of
    from fedsim.api.progress import run_display
    from fedsim.api.simulate import follow, with_drawn
    from fedsim.common.files import taken
    from fedsim.results.privacy_statement import parameters
    from fedsim.scenario.resolve import with_seed
    from fedsim.simulation.failures import WorkerLost

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
    return _print_outcome(done, directory, output)


def _print_outcome(done: Run, directory: Path, output: Output) -> int:
    """Print the outcome; return the exit code."""
    from fedsim.results.summary import FILE

    if done.failure:
        print_failure(output.errors, f"{done.failure}; {_kept(done, directory)}")
    elif done.interrupted:
        say(output.errors, f"Interrupted: {_kept(done, directory)}")
    if (directory / FILE).exists():
        print_run(output.results, done, directory)
        output.summary({"directory": str(directory), **done.summary.tree()})
    return FAILED if done.failure else INTERRUPTED if done.interrupted else DONE


def _kept(done: Run, directory: Path) -> str:
    """A line on the finished trials, and the command that resumes."""
    from fedsim.api.simulate import finished_in

    command = shlex.join(["fedsim", "simulate", "--resume", shown(directory)])
    count = finished_in(directory)
    return f"{count} of {done.summary.trials.asked} trials are complete and saved. To go on: {command}"


def _nothing(output: Output, code: int) -> int:
    say(output.errors, "Interrupted before anything was measured; nothing was saved.")
    return code
