"""`fedsim sweep`: run every combination, keep every finished cell, draw the figure."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import (
    DONE,
    FAILED,
    INTERRUPTED,
    RUNS,
    Address,
    DataDir,
    Overrides,
    Quiet,
    ScenarioFile,
    SummaryAsJson,
    app,
    data_from,
    on_runtime,
    plain_errors,
)
from fedsim.cli.output import Output, print_notices, say, shown, slug, titled
from fedsim.privacy.rounding import shown_up

if TYPE_CHECKING:
    from fedsim.report.sweep_summary import Setting, SweepSummary
    from fedsim.sweeps.run import FinishedSweep


@app.command(rich_help_panel=RUNS)
def sweep(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Sweep directory; finished cells in it are used again. Default runs/NAME."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Ray workers; default one per CPU; 0: in this process.")
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: SummaryAsJson = False,
) -> None:
    """Run a scenario's `sweep` section: all combinations, tuned, over trials; resumes where it stopped."""
    changes = [*(overrides or []), *on_runtime("ray" if address else None, address)]
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        tree = early.swept(scenario, changes)
        from fedsim.api.sweep import sweep_display
        from fedsim.sweeps.job import job_of
        from fedsim.sweeps.run import run

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        job, output = job_of(tree), Output(quiet, as_json)
        directory = out or Path("runs") / slug(job.scenario.name)
        watch = partial(sweep_display, output.progress)
        done = run(job, directory, workers, watch, lambda text: say(output.errors, f"warning: {text}"))
        raise typer.Exit(_print_outcome(done, directory, output))


def _print_outcome(sweep: FinishedSweep, directory: Path, output: Output) -> int:
    """Print the outcome; return the exit code."""
    if sweep.interrupted:
        return _interrupted(output.errors, sweep, directory)
    _failures(output.errors, sweep, directory)
    _report(output.results, sweep, directory)
    output.summary({"directory": str(directory), **sweep.summary.tree()})
    return FAILED if sweep.results.failures else DONE


def _interrupted(console: Console, sweep: FinishedSweep, directory: Path) -> int:
    if sweep.lost:
        say(console, f"failed: {sweep.lost}", "red")
    again = f"the same command with --out {directory} goes on from there"
    say(console, f"Interrupted: {sweep.kept} finished cells are kept; {again}.")
    return FAILED if sweep.lost else INTERRUPTED


def _failures(console: Console, sweep: FinishedSweep, directory: Path) -> None:
    from fedsim.sweeps.run import failure_file

    for event, failure in sweep.results.failures:
        name, trial = sweep.job.title(event.place), event.cell.trial
        file = failure_file(event, directory).relative_to(directory)
        text = f"{failure.kind}: {name}, trial {trial}: {failure.message}; see {file}"
        say(console, text, "red")


def _report(console: Console, sweep: FinishedSweep, directory: Path) -> None:
    from fedsim.report.sweep_page import true_epsilons

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


def sweep_table(sweep: SweepSummary) -> Table:
    """One row per combination: what was varied and chosen, error and cost."""
    from fedsim.report.sweep_summary import last_part
    from fedsim.results.summary import spans
    from fedsim.results.texts import value_text
    from fedsim.scenario.metric import METRICS

    note = (
        f"mean of {sweep.trials} trials, in brackets {spans(sweep.trials)}"
        if sweep.trials > 1
        else "one trial"
    )
    what = METRICS[sweep.metric].title
    table = titled(f"{what[0].upper()}{what[1:]}: {note}")
    for name in sweep.varied:
        table.add_column(last_part(name), overflow="fold")
    chosen = sweep.chosen if len(sweep.chosen) < 2 else [""]  # several in one column: 80 characters
    for name in chosen:
        table.add_column(f"chosen {last_part(name)}", justify="right", overflow="fold")
    for name in (what, "guaranteed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sweep.combinations:
        cells = [_value(row.varied.get(name, "-")) for name in sweep.varied]
        cells += [_chosen(row.chosen or {}, name) for name in chosen]
        table.add_row(
            *cells, value_text(row.spread(sweep.metric)) or "failed", shown_up(row.epsilon_guaranteed)
        )
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
