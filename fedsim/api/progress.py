"""How far a run is, with its current metric: a bar on a screen or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedsim.results.outcome import Measurement, Observer, variants
from fedsim.scenario.resolve import Resolved

if TYPE_CHECKING:
    from fedsim.attacks.run import Observe

Watch = Callable[[Resolved], AbstractContextManager[Observer]]
"""Opened when a run begins; told every measurement until it ends."""

_EVERY = 2.0  # seconds between two plain lines
_EVERY_AUDIT = 10.0
_BLINK = 0.2  # seconds between two states of a notebook's bar


def watcher(progress: bool | Observer | None) -> Watch:
    """What `progress` asks for.

    Args:
        progress: None shows a bar on a screen or in a notebook and nothing elsewhere; True shows plain lines
            there; False shows nothing; a function is told every measurement.
    """
    if callable(progress):
        return lambda resolved: nullcontext(progress)
    if progress is not False and in_notebook():
        return _in_cell
    console = console_for(progress)
    return lambda resolved: (
        on_console(console, resolved) if console else nullcontext(lambda measurement: None)
    )


def watch_audit(progress: bool | Observe | None) -> AbstractContextManager[Observe]:
    """As `watcher`, for an audit."""
    if callable(progress):
        return nullcontext(progress)
    if progress is not False and in_notebook():
        return cell_bar()
    console = console_for(progress)
    return audit_on_console(console) if console else nullcontext(lambda what, share: None)


def console_for(progress: bool | None) -> Console | None:
    """Where to show progress, if anywhere."""
    console = Console(stderr=True)
    return console if progress or (progress is None and console.is_terminal) else None


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
def audit_on_console(console: Console) -> Iterator[Observe]:
    """A live bar on a screen, plain lines elsewhere."""
    if not console.is_terminal:
        last = time.monotonic()

        def line(what: str, share: float) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY_AUDIT:
                last = time.monotonic()
                console.print(f"{what}: {share:.0%}", highlight=False)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


@contextmanager
def _in_cell(resolved: Resolved) -> Iterator[Observer]:
    done, total = 0, _evaluations(resolved)

    def observe(measurement: Measurement) -> None:
        nonlocal done
        done += 1
        show(f"{done}/{total} {_text(measurement)}", done / total)

    with cell_bar() as show:
        yield observe


@contextmanager
def cell_bar() -> Iterator[Observe]:
    """A bar of HTML in a notebook's cell, gone at the end; rich's own needs ipywidgets."""
    from IPython.display import HTML, display

    last, handle = 0.0, display(HTML("starting"), display_id=True)

    def show(what: str, share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _BLINK:
            last = time.monotonic()
            handle.update(HTML(f'<progress value="{share:.3f}"></progress> {escape(what)}'))

    try:
        yield show
    finally:
        handle.update(HTML(""))


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
