"""How far a sweep is: see `fedsim.api.progress`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from fedsim.api.progress import display, watching
from fedsim.results.outcome import value
from fedsim.scenario.metric import METRICS
from fedsim.sweeps.cell import CellResult
from fedsim.sweeps.engine import Event
from fedsim.sweeps.job import Job
from fedsim.sweeps.run import Watch


def watcher(asked: bool | Callable[[Event], None] | None) -> Watch:
    """What `progress` asks for, for a sweep."""
    return lambda job: watching(asked, partial(sweep_display, job=job))


@contextmanager
def sweep_display(console: Console | None, job: Job) -> Iterator[Callable[[Event], None]]:
    """Show a sweep's cells."""
    board = Board(job)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with display(console, board.total, TextColumn("cells"), *columns) as draw:

        def observe(event: Event) -> None:
            board.add(event)
            left = board.seconds_left() if console else None
            rest = f", about {left:.0f} s left" if left else ""
            line = f"{board.done}/{board.total} cells{rest}; {board.text()}"
            draw(board.done, board.text(), line, restart=event.cached)  # those say nothing about speed

        yield observe


class Board:
    """Counts cells, and keeps the private candidate whose mean of the metric is best so far."""

    def __init__(self, job: Job) -> None:
        self._job, self.total = job, job.cells
        self.done = self.cached = self.failed = 0
        self._metric = job.scenario.report.metric
        self._sign = -1 if METRICS[self._metric].higher else 1
        self._sums: dict[tuple[int, int], tuple[float, int]] = {}
        self._first: float | None = None  # when the first cell was run: starting workers tells no pace

    def add(self, event: Event) -> None:
        """Count a cell."""
        self.done += 1
        self.cached += event.cached
        if self._first is None and not event.cached:
            self._first = time.monotonic()
        if isinstance(event.outcome, CellResult):
            self._sum(event, event.outcome)
        else:
            self.failed += 1

    def _sum(self, event: Event, result: CellResult) -> None:
        place = event.place.combination, event.place.candidate
        found = value(result, self._metric)
        if found is not None:  # a run that tunes by its training loss has error and loss alone
            total, count = self._sums.get(place, (0.0, 0))
            self._sums[place] = total + found, count + 1

    def seconds_left(self) -> float | None:
        """At the pace so far; None before two cells were run."""
        ran = self.done - self.cached
        if self._first is None or ran < 2:
            return None
        return (self.total - self.done) * (time.monotonic() - self._first) / (ran - 1)

    def best(self) -> str:
        """Words for the best so far, private ones first."""
        means = [
            (not self._job.combinations[place[0]].private, self._sign * total / count, place)
            for place, (total, count) in self._sums.items()
        ]
        if not means:
            return ""
        _, least, (number, candidate) = min(means)
        return f"best so far {self._sign * least:.4f}: {self._job.combinations[number].title(candidate)}"

    def text(self) -> str:
        """Failures, and the best so far."""
        failed = f"{self.failed} failed; " if self.failed else ""
        return failed + self.best()
