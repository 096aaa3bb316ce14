"""Progress of a run or an audit: a bar on a screen or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedsim.report.outcome import Observer, metric_text, variants
from fedsim.report.record import Measurement
from fedsim.scenario.resolve import Resolved

if TYPE_CHECKING:
    from fedsim.testing.attacks.audit import Observe

Watch = Callable[[Resolved], AbstractContextManager[Observer]]
"""Opened when a run begins; it gets every measurement until the run ends."""
Observing = TypeVar("Observing", bound=Callable[..., None])


def watching(
    asked: bool | Observing | None, show: Callable[[Console | None], AbstractContextManager[Observing]]
) -> AbstractContextManager[Observing]:
    """The display that `progress` asks for: None shows a bar on a screen or in a notebook and nothing
    elsewhere, True plain lines there, False nothing; a function gets everything. `show` opens a display on a
    console, or in a notebook's cell where there is none.
    """
    if callable(asked):
        return nullcontext(asked)
    if asked is not False and _in_notebook():
        return show(None)
    console = Console(stderr=True)
    wanted = asked or (asked is None and console.is_terminal)
    return show(console) if wanted else nullcontext(cast(Observing, lambda *_: None))


@contextmanager
def run_display(console: Console | None, resolved: Resolved) -> Iterator[Observer]:
    """Show a run's measurements."""
    rounds, report, done = len(resolved.trace.plan.rounds), resolved.scenario.report, 0
    evaluations = len(range(0, rounds + 1, report.evaluate_every)) + (rounds % report.evaluate_every > 0)
    total = evaluations * len(variants(resolved)) * resolved.scenario.trials
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with display(console, total, *columns) as draw:

        def observe(measurement: Measurement) -> None:
            nonlocal done
            done += 1
            kind = "" if measurement.variant == "private" else " (non-private)"
            what = metric_text(measurement, report.metric)
            text = f"trial {measurement.trial} round {measurement.round}{kind}: {what}"
            draw(done, text, f"{done}/{total} {text}")

        yield observe


@contextmanager
def audit_display(console: Console | None) -> Iterator[Observe]:
    """Show how far an audit is."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with display(console, 1.0, *columns, every=10.0, last=False) as draw:
        yield lambda what, share: draw(share, what, what if console is None else f"{what}: {share:.0%}")


@contextmanager
def display(
    console: Console | None, total: float, *columns: Any, every: float = 2.0, last: bool = True
) -> Iterator[Callable[..., None]]:
    """A bar on a screen or, without a console, in a notebook's cell; plain lines elsewhere, `every` so many
    seconds and, with `last`, when all is done.

    Yields `draw(done, text, line, restart=False)`: how much of `total` is done, the text beside a bar on a
    screen, the text in a cell or a line, and whether the pace is measured from here on.
    """
    if console is None:
        with _cell() as update:
            yield lambda done, text, line, restart=False: update(done / total, line)
    elif console.is_terminal:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=total)

            def draw(done: float, text: str, line: str, restart: bool = False) -> None:
                if restart:
                    bar.reset(task, completed=int(done), description=text)
                else:
                    bar.update(task, completed=done, description=text)

            yield draw
    else:
        due = _due(every, time.monotonic())

        def write(done: float, text: str, line: str, restart: bool = False) -> None:
            if due() or (last and done == total):
                console.print(line, highlight=False, soft_wrap=True)

        yield write


@contextmanager
def _cell() -> Iterator[Callable[[float, str], None]]:
    """A bar of HTML in a notebook's cell, gone at the end; that of rich needs ipywidgets."""
    from IPython.display import HTML, display

    handle, due = display(HTML("starting"), display_id=True), _due(0.2, 0.0)  # it does not flicker

    def update(share: float, text: str) -> None:
        if due():
            handle.update(HTML(f'<progress value="{share:.3f}"></progress> {escape(text)}'))

    try:
        yield update
    finally:
        handle.update(HTML(""))


def _due(seconds: float, last: float) -> Callable[[], bool]:
    """A function that is true at most once in so many seconds."""

    def due() -> bool:
        nonlocal last
        passed = time.monotonic() - last >= seconds
        last = time.monotonic() if passed else last
        return passed

    return due


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None
