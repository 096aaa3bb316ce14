"""How far a sweep is: a bar on a screen or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.api.progress import cell_bar, console_for, in_notebook
from fedsim.sweeps.cell import CellResult
from fedsim.sweeps.engine import Event
from fedsim.sweeps.job import Job
from fedsim.sweeps.run import Watch, unwatched

_EVERY = 2.0  # seconds between two plain lines


def watcher(asked: bool | Callable[[Event], None] | None) -> Watch:
    """What `progress` asks for; see `fedsim.api.progress.watcher`."""
    if callable(asked):
        return lambda job: nullcontext(asked)
    if asked is not False and in_notebook():
        return _in_cell
    console = console_for(asked)
    return partial(progress, console) if console else unwatched


@contextmanager
def _in_cell(job: Job) -> Iterator[Callable[[Event], None]]:
    board = Board(job)
    with cell_bar() as show:

        def observe(event: Event) -> None:
            board.add(event)
            show(f"{board.done}/{board.total} cells; {board.text()}", board.done / board.total)

        yield observe


@contextmanager
def progress(console: Console, job: Job) -> Iterator[Callable[[Event], None]]:
    """Yields the function that is told every cell."""
    board = Board(job)
    if not console.is_terminal:
        yield _lines(console, board)
        return
    columns = (
        TextColumn("cells"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=board.total)

        def observe(event: Event) -> None:
            board.add(event)
            if event.cached:  # they say nothing about speed
                bar.reset(task, total=board.total, completed=board.done, description=board.text())
            else:
                bar.update(task, completed=board.done, description=board.text())

        yield observe


class Board:
    """Counts cells, and keeps the private candidate of least mean test error so far."""

    def __init__(self, job: Job) -> None:
        self._job, self.total = job, job.cells
        self.done = self.cached = self.failed = 0
        self._sums: dict[tuple[int, int], tuple[float, int]] = {}
        self._first: float | None = None  # when the first cell was run: starting workers tells no pace

    def add(self, event: Event) -> None:
        """Count a cell."""
        self.done += 1
        self.cached += event.cached
        if self._first is None and not event.cached:
            self._first = time.monotonic()
        if isinstance(event.outcome, CellResult):
            place = event.place.combination, event.place.candidate
            total, count = self._sums.get(place, (0.0, 0))
            self._sums[place] = total + event.outcome.test_error, count + 1
        else:
            self.failed += 1

    def seconds_left(self) -> float | None:
        """At the pace so far; None before two cells were run."""
        ran = self.done - self.cached
        if self._first is None or ran < 2:
            return None
        return (self.total - self.done) * (time.monotonic() - self._first) / (ran - 1)

    def best(self) -> str:
        """Words for the best so far, private ones first."""
        means = [
            (not self._job.combinations[place[0]].private, total / count, place)
            for place, (total, count) in self._sums.items()
        ]
        if not means:
            return ""
        _, error, (number, candidate) = min(means)
        return f"best so far {error:.4f}: {self._job.combinations[number].title(candidate)}"

    def text(self) -> str:
        """Failures, and the best so far."""
        failed = f"{self.failed} failed; " if self.failed else ""
        return failed + self.best()


def _lines(console: Console, board: Board) -> Callable[[Event], None]:
    total, last = board.total, time.monotonic()

    def observe(event: Event) -> None:
        nonlocal last
        board.add(event)
        if time.monotonic() - last >= _EVERY or board.done == total:
            last = time.monotonic()
            left = board.seconds_left()
            rest = f", about {left:.0f} s left" if left else ""
            console.print(
                f"{board.done}/{total} cells{rest}; {board.text()}", highlight=False, soft_wrap=True
            )

    return observe
