"""`fedsim.sweep`: every combination that a scenario's `sweep` section stands for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from fedsim.api.given import ScenarioLike, changes_of, tree_of, with_objects
from fedsim.api.progress import display, watching
from fedsim.common.objects import standing
from fedsim.data.dataset import Dataset
from fedsim.protocol.contract import Algorithm
from fedsim.report.outcome import value
from fedsim.report.record import CellResult
from fedsim.scenario.metric import METRICS
from fedsim.simulation.sweeps.engine import Event
from fedsim.simulation.sweeps.job import Job, job_of
from fedsim.simulation.sweeps.run import Sweep, run


def sweep(
    scenario: ScenarioLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool | Callable[[Event], None] | None = None,
    **short: Any,
) -> Sweep:
    """Run every combination of a scenario's `sweep` section, tuned, over trials; InputError as `simulate`.

    Args:
        scenario: see `fedsim.simulate`, as for `overrides`, `algorithm`, `data`, `progress` and `short`. The
            section may be given here: `{"sweep.grid": {"privacy.epsilon": [1, 2]}}`, with objects among the
            values. Cells of an algorithm that is an object are not kept for a later call.
        out: a directory for cells and results; the same call continues there after an interruption.
        workers: Ray workers; None: one per CPU, or none if the scenario's runtime is in-process; 0: none.

    Returns:
        The sweep. An interrupt returns what there is, and `Sweep.interrupted` is true.
    """
    place = None if out is None else Path(out)
    changes = changes_of(overrides, short)
    with standing():
        job = job_of(with_objects(tree_of(scenario, changes), algorithm, data, changes), place)
        return run(job, place, workers, lambda job: watching(progress, partial(sweep_display, job=job)))


@contextmanager
def sweep_display(console: Console | None, job: Job) -> Iterator[Callable[[Event], None]]:
    """Show a sweep's cells."""
    board = _Board(job)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with display(console, board.total, TextColumn("cells"), *columns) as draw:

        def observe(event: Event) -> None:
            board.add(event)
            left = board.seconds_left() if console else None
            rest = f", about {left:.0f} s left" if left else ""
            line = f"{board.done}/{board.total} cells{rest}; {board.text()}"
            draw(board.done, board.text(), line, restart=event.cached)  # those say nothing about speed

        yield observe


class _Board:
    """Counts cells, and keeps the candidate whose mean of the metric over all its runs is best so far: a mean
    over some of them would come and go. Private candidates come first.
    """

    def __init__(self, job: Job) -> None:
        self._job, self.total = job, job.cells
        self.done = self.cached = self.failed = 0
        self._metric = job.scenario.report.metric
        self._sign = -1 if METRICS[self._metric].higher else 1
        self._values: dict[tuple[int, int, bool], list[float]] = {}
        self._first: float | None = None  # when the first cell was run: starting workers tells no pace

    def add(self, event: Event) -> None:
        self.done += 1
        self.cached += event.cached
        if self._first is None and not event.cached:
            self._first = time.monotonic()
        if not isinstance(event.outcome, CellResult):
            self.failed += 1
        elif (number := value(event.outcome, self._metric)) is not None:  # some are tuned by loss alone
            place, reported = event.place, event.place.trial in self._job.reported_trials
            self._values.setdefault((place.combination, place.candidate, reported), []).append(number)

    def seconds_left(self) -> float | None:
        """At the pace so far; None before two cells were run."""
        ran = self.done - self.cached
        if self._first is None or ran < 2:
            return None
        return (self.total - self.done) * (time.monotonic() - self._first) / (ran - 1)

    def text(self) -> str:
        """Failures, and the best so far."""
        failed = f"{self.failed} failed; " if self.failed else ""
        scenario, tune = self._job.scenario, self._job.tune
        runs = {True: scenario.trials, False: tune.repetitions if tune else 0}
        means = [
            (not self._job.combinations[place[0]].private, self._sign * fmean(values), place)
            for place, values in self._values.items()
            if len(values) == runs[place[-1]]
        ]
        if not means:
            return failed
        _, least, (number, candidate, _) = min(means)
        title = self._job.combinations[number].title(candidate)
        return f"{failed}best so far {self._sign * least:.4f}: {title}"
