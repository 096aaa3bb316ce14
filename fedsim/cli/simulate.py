"""`fedsim simulate` runs a scenario, and `fedsim sweep` every combination of its `sweep` section."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedsim.cli import app as shared
from fedsim.cli.app import DONE, FAILED, INTERRUPTED, RUNS, app, data_from, fail, ready
from fedsim.cli.output import Output, dated, print_notices, print_run, say, shown, slug, titled
from fedsim.common.files import taken, to_resume
from fedsim.privacy.rounding import shown_up

if TYPE_CHECKING:
    from fedsim.api.run import Run
    from fedsim.report.summary import Setting
    from fedsim.report.sweep_summary import SweepSummary
    from fedsim.scenario.model import Scenario
    from fedsim.simulation.sweeps.run import Sweep


@app.command(rich_help_panel=RUNS)
def simulate(
    scenario: shared.ScenarioOrResume = None,
    overrides: shared.Overrides = None,
    data_dir: shared.DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME-TIME.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume an interrupted run: its unfinished trials.")
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inprocess; overrides the scenario.")] = None,
    address: shared.Address = None,
    quiet: shared.Quiet = False,
    as_json: shared.SummaryAsJson = False,
) -> None:
    """Train a private model across silos and write the run directory."""
    changes = [*(overrides or []), *shared.on_runtime(runtime, address)]
    with data_from(data_dir):
        path = to_resume(resume) if scenario is None and resume is not None else scenario
        if path is None:
            fail("error: SCENARIO: name one, or --resume RUN")
        if resume is not None and out is not None:
            fail("error: --out: --resume RUN goes on in RUN: leave --out out")
        raise typer.Exit(_run(ready(path, changes, out), out, resume, Output(quiet, as_json)))


def _run(scenario: Scenario, out: Path | None, resume: Path | None, output: Output) -> int:
    """Simulate a scenario in a new directory, or go on with the unfinished run of it; the exit code."""
    from fedsim.api.given import resolved_of
    from fedsim.api.progress import run_display
    from fedsim.api.simulate import follow, with_drawn
    from fedsim.report.privacy_statement import parameters
    from fedsim.report.summary import FILE
    from fedsim.report.texts import parameter_lines
    from fedsim.scenario.resolve import with_seed
    from fedsim.simulation.failures import WorkerLost

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end a run with what it has
    resolved = resolved_of(with_seed(scenario if resume is None else with_drawn(scenario, resume)))
    directory = resume or out or taken(dated(resolved.scenario.name))
    say(output.results, *parameter_lines(parameters(resolved).get("parameters")))
    warn = partial(output.errors.print, markup=False)
    try:
        done = follow(resolved, partial(run_display, output.progress), directory, warn, resume is not None)
    except KeyboardInterrupt:
        return _nothing(output, INTERRUPTED)
    except WorkerLost as error:
        say(output.errors, f"failed: {error}", style="red")
        return _nothing(output, FAILED)
    if done.failure:
        say(output.errors, f"failed: {done.failure}; {_kept(done, directory)}", style="red")
    elif done.interrupted:
        say(output.errors, f"Interrupted: {_kept(done, directory)}")
    if (directory / FILE).exists():
        print_run(output.results, done, directory)
        output.summary({"directory": str(directory), **done.summary.tree()})
    return FAILED if done.failure else INTERRUPTED if done.interrupted else DONE


def _kept(done: Run, directory: Path) -> str:
    """A line on the finished trials, and the command that resumes."""
    from fedsim.report.outcome import Outcome

    assert isinstance(done.source, Outcome)  # it has just ended
    command = shlex.join(["fedsim", "simulate", "--resume", shown(directory)])
    count = done.source.results.kept
    return f"{count} of {done.summary.trials.asked} trials are complete and saved. To go on: {command}"


def _nothing(output: Output, code: int) -> int:
    say(output.errors, "Interrupted before anything was measured; nothing was saved.")
    return code


_OUT = "Sweep directory; finished cells in it are used again. Default runs/NAME."


@app.command(rich_help_panel=RUNS)
def sweep(
    scenario: shared.ScenarioFile,
    overrides: shared.Overrides = None,
    data_dir: shared.DataDir = None,
    out: Annotated[Path | None, typer.Option(help=_OUT)] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Ray workers; default one per CPU; 0: in this process.")
    ] = None,
    address: shared.Address = None,
    quiet: shared.Quiet = False,
    as_json: shared.SummaryAsJson = False,
) -> None:
    """Run a scenario's `sweep` section: all combinations, tuned, over trials; resumes where it stopped."""
    changes = [*(overrides or []), *shared.on_runtime("ray" if address else None, address)]
    with data_from(data_dir):
        from fedsim.scenario.load import load_tree
        from fedsim.simulation.sweeps.combinations import combinations

        tree = load_tree(scenario, changes)
        for candidate in (one for combination in combinations(tree) for one in combination.candidates):
            shared.check_ready(candidate.scenario)
        from fedsim.api.sweep import sweep_display
        from fedsim.simulation.sweeps.job import job_of
        from fedsim.simulation.sweeps.run import run

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        directory = out or Path("runs") / slug(str(tree.get("name")))
        job, output = job_of(tree, directory), Output(quiet, as_json)
        watch = partial(sweep_display, output.progress)
        done = run(job, directory, workers, watch, lambda text: say(output.errors, f"warning: {text}"))
        raise typer.Exit(_print_sweep(done, directory, output))


def _print_sweep(sweep: Sweep, directory: Path, output: Output) -> int:
    from fedsim.report.sweep_page import true_epsilons
    from fedsim.simulation.sweeps.run import failure_file

    console, errors, summary = output.results, output.errors, sweep.summary
    if sweep.lost:
        say(errors, f"failed: {sweep.lost}", style="red")
    if sweep.interrupted:
        again = f"the same command with --out {directory} goes on from there"
        say(errors, f"Interrupted: {sweep.kept} finished cells are kept; {again}.")
        return FAILED if sweep.lost else INTERRUPTED
    for title, count in Counter(sweep.job.title(event.place) for event in sweep.results.diverged).items():
        say(errors, f"warning: {title}: diverged in {count} tuning runs, and counts as the worst candidate")
    for event in sweep.results.failures:
        name, trial, failure = sweep.job.title(event.place), event.cell.trial, event.failure
        file = failure_file(event, directory).relative_to(directory)
        say(errors, f"{failure.kind}: {name}, trial {trial}: {failure.message}; see {file}", style="red")
    print_notices(console, [*summary.privacy.notices, *true_epsilons(summary)])
    console.print(sweep_table(summary))
    say(console, *sweep.notes)
    runs = summary.runs
    counts = f"{runs.made} cells run, {runs.from_cache} from the cache, {runs.failed} failed"
    say(console, f"{counts}, in {summary.wall_seconds:.1f} s")
    say(console, f"Wrote {shown(directory)}/ ({', '.join(sweep.files)})")
    output.summary({"directory": str(directory), **summary.tree()})
    return FAILED if sweep.results.failures else DONE


def sweep_table(sweep: SweepSummary) -> Table:
    """One row per combination: what was varied and chosen, error and cost."""
    from fedsim.report.summary import spans, value_text
    from fedsim.report.sweep_summary import last_part
    from fedsim.report.tables import capital
    from fedsim.scenario.metric import METRICS

    several = f"mean of {sweep.trials} trials, in brackets {spans(sweep.trials)}"
    note = several if sweep.trials > 1 else "one trial"
    what = METRICS[sweep.metric].title
    table = titled(f"{capital(what)}: {note}", texts=[last_part(name) for name in sweep.varied])
    chosen = sweep.chosen if len(sweep.chosen) < 2 else [""]  # several in one column: 80 characters
    for name in chosen:
        table.add_column(f"chosen {last_part(name)}", justify="right", overflow="fold")
    for name in (what, "guaranteed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sweep.combinations:
        cells = [_value(row.varied.get(name, "-")) for name in sweep.varied]
        cells += [_chosen(row.chosen or {}, name) for name in chosen]
        cells += [value_text(row.spread(sweep.metric)) or "failed", shown_up(row.epsilon_guaranteed)]
        table.add_row(*cells)
    if sweep.baselines:
        table.add_section()
    for label, one in sweep.levels():
        blank = ["-"] * (len(sweep.varied) + len(chosen) - 1)
        table.add_row(label, *blank, value_text(one.spread(sweep.metric)) or "not fitted", "not private")
    return table


def _chosen(chosen: Setting, field: str) -> str:
    """The value of one field, or of all where `field` is empty."""
    if field:
        return _value(chosen.get(field, "-"))
    from fedsim.report.sweep_summary import title

    return title(chosen, True) if chosen else "-"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
