"""Progress with the current metric: a live bar on a screen, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.results.outcome import Measurement, Observer, variants
from fedsim.scenario.resolve import Resolved

_EVERY = 2.0  # seconds between two plain lines


@contextmanager
def progress(console: Console, resolved: Resolved) -> Iterator[Observer]:
    """Yields the function that is told every measurement."""
    total = _evaluations(resolved)
    if not console.is_terminal:
        yield _lines(console, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda m: bar.update(task, advance=1, description=_text(m))


def _evaluations(resolved: Resolved) -> int:
    rounds, every = len(resolved.trace.plan.rounds), resolved.scenario.report.evaluate_every
    per_variant = len(range(0, rounds + 1, every)) + (rounds % every > 0)
    return per_variant * len(variants(resolved)) * resolved.scenario.trials


def _text(measurement: Measurement) -> str:
    kind = "" if measurement.variant == "private" else " (non-private)"
    return (
        f"trial {measurement.trial} round {measurement.round}{kind}: test error {measurement.test_error:.4f}"
    )


def _lines(console: Console, total: int) -> Observer:
    done, last = 0, time.monotonic()

    def observe(measurement: Measurement) -> None:
        nonlocal done, last
        done += 1
        if time.monotonic() - last >= _EVERY or done == total:
            last = time.monotonic()
            console.print(f"{done}/{total} {_text(measurement)}", highlight=False)

    return observe
