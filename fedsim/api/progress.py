"""How far a run is, with its current metric: a bar on a screen or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.results.outcome import Measurement, Observer, variants
from fedsim.scenario.resolve import Resolved

Watch = Callable[[Resolved], AbstractContextManager[Observer]]
"""Opened when a run begins; told every measurement until it ends."""

_EVERY = 2.0  # seconds between two plain lines
_BLINK = 0.2  # seconds between two states of a notebook's bar


def watcher(progress: bool | Observer | None) -> Watch:
    """What `progress` asks for.

    Args:
        progress: None shows a bar on a screen or in a notebook and nothing elsewhere; True shows plain lines
            there; False shows nothing; a function is told every measurement.
    """
    if callable(progress):
        return lambda resolved: _told(progress)
    if progress is False:
        return lambda resolved: _told(lambda measurement: None)
    if in_notebook():
        return _notebook
    console = Console(stderr=True)
    if console.is_terminal or progress:
        return lambda resolved: on_console(console, resolved)
    return lambda resolved: _told(lambda measurement: None)


def in_notebook() -> bool:
    """Whether output goes to the cells of a notebook."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def on_console(console: Console, resolved: Resolved) -> Iterator[Observer]:
    """A live bar on a screen, plain lines elsewhere."""
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


@contextmanager
def _told(observer: Observer) -> Iterator[Observer]:
    yield observer


@contextmanager
def _notebook(resolved: Resolved) -> Iterator[Observer]:
    """A bar of HTML in the cell's output, gone when the run ends; rich's own needs ipywidgets."""
    from IPython.display import HTML, display

    done, total, last = 0, _evaluations(resolved), 0.0
    shown: Any = display(HTML("starting"), display_id=True)

    def observe(measurement: Measurement) -> None:
        nonlocal done, last
        done += 1
        if time.monotonic() - last >= _BLINK:
            last = time.monotonic()
            bar = f'<progress max="{total}" value="{done}"></progress>'
            shown.update(HTML(f"{bar} {done}/{total} {_text(measurement)}"))

    try:
        yield observe
    finally:
        shown.update(HTML(""))


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
