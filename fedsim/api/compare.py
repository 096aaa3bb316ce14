"""`fedsim.compare`: runs, sweeps and published points in one table and one figure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsim.api.run import Run
from fedsim.common.errors import InputError
from fedsim.report.comparison import Comparison, Source, compared, source_of
from fedsim.simulation.sweeps.run import Sweep

Comparable = Run | Sweep | str | os.PathLike[str]  # a run, a sweep, or the directory of one


def compare(
    runs: Mapping[str, Comparable] | Iterable[Comparable],
    *,
    points: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    against: str | None = None,
) -> Comparison:
    """Put several runs and sweeps beside each other, a metric against epsilon or another metric.

    Args:
        runs: runs, sweeps and directories of such; {name: run} to name them. Runs of one name and algorithm
            at several epsilons make one line.
        points: a CSV file of published points: series, epsilon, error (or another metric)[, low, high], and a
            column of the metric `against`; rows without a value there are left out.
        metric: what is compared, such as "auc"; None: what the first run's scenario chose.
        against: the metric that it is drawn against, such as "parity_gap", a line for each epsilon, along the
            other number that a sweep varied; None: epsilon.

    Raises:
        InputError: something is neither, was left unfinished, or measures another error than the rest; or
            the file of points cannot be used.
    """
    if isinstance(runs, Run | Sweep | str | os.PathLike) or not isinstance(runs, Iterable):
        raise InputError("runs", runs, "must be a list of runs, or {name: run}")
    named: Iterable[Any] = runs.items() if isinstance(runs, Mapping) else (("", run) for run in runs)
    sources = [_source(name, run) for name, run in named]
    return compared(sources, None if points is None else Path(points), metric, against)


def _source(name: str, run: Comparable) -> Source:
    if isinstance(run, Run | Sweep):
        return Source(name or run.summary.scenario, run.summary)
    if isinstance(run, str | os.PathLike):
        source = source_of(Path(run))
        return source._replace(name=name or source.name)
    raise InputError("runs", run, "must be a run, a sweep, or the directory of one")
