"""What the terminal shows of a run that has ended."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedsim.api.run import Run
from fedsim.cli.tables import print_notices, print_silos, print_warnings, rendered, say, shown
from fedsim.report.page import listing
from fedsim.report.remarks import remarks, result_line
from fedsim.results.metrics_table import TITLE, metrics_table


def print_failure(console: Console, failure: str) -> None:
    """Why a run failed."""
    say(console, f"failed: {failure}", "red")


def print_run(console: Console, done: Run, directory: Path) -> None:
    """A run's result, what it cost whom, and where its files are."""
    summary = done.summary
    print_notices(console, summary.privacy.notices)
    print_warnings(console, summary.warnings)
    console.print(result_line(summary))
    for line in remarks(summary):
        console.print(line, markup=False, highlight=False)
    if summary.trials.finished and summary.deployment is None:
        console.print()
        console.print(rendered(metrics_table(summary), TITLE))
    if summary.privacy.silos:
        console.print()
        print_silos(console, summary.privacy.silos)
        console.print()
    files = ", ".join(listing(directory))
    say(console, f"Wrote {shown(directory)}/ ({files})")
