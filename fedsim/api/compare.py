"""`fedsim.compare`: runs, sweeps and published points in one table and one figure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fedsim.api.run import Run, Table
from fedsim.api.sweep import Sweep
from fedsim.common.errors import InputError
from fedsim.common.files import check_free
from fedsim.report import comparison
from fedsim.report.comparison import Source, source_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Comparable = Run | Sweep | str | os.PathLike[str]
"""A run, a sweep, or the directory of one."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `fedsim.compare`; `lines` has the rows and draws them."""

    lines: comparison.ComparisonData

    @property
    def errors(self) -> Table:
        """One row per mean of the metric: whose, at which epsilon (none: no privacy), its 90 % interval."""
        return Table(pa.Table.from_pylist(self.lines.table()))

    def plot(self) -> Figure:
        """A figure of the metric against epsilon."""
        return self.lines.figure()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as CSV and the figure as PNG and SVG into a new directory.

        Raises:
            InputError: it holds something already, or cannot be written.
        """
        comparison.write(self.lines, check_free(Path(path)))

    def __repr__(self) -> str:
        return f"Comparison({len(self.lines.rows)} values: {self.lines.title})"

    def _repr_html_(self) -> str:
        return self.errors._repr_html_()


def compare(
    runs: Mapping[str, Comparable] | Iterable[Comparable],
    *,
    points: str | os.PathLike[str] | None = None,
    metric: str | None = None,
) -> Comparison:
    """Put several runs and sweeps beside each other, a metric against epsilon.

    Args:
        runs: runs, sweeps and directories of such; {name: run} to name them. Runs of one name and algorithm
            at several epsilons make one line.
        points: a CSV file of published points: series, epsilon, error (or another metric)[, low, high].
        metric: what is compared, such as "auc"; None: what the first run's scenario chose.

    Raises:
        InputError: something is neither, was left unfinished, or measures another error than the rest.
    """
    if isinstance(runs, Run | Sweep | str | os.PathLike) or not isinstance(runs, Iterable):
        raise InputError("runs", runs, "must be a list of runs, or {name: run}")
    named: Iterable[tuple[str, Any]] = (
        runs.items() if isinstance(runs, Mapping) else (("", run) for run in runs)
    )
    sources = [_source(name, run) for name, run in named]
    return Comparison(comparison.compared(sources, None if points is None else Path(points), metric))


def _source(name: str, run: Comparable) -> Source:
    if isinstance(run, Run | Sweep):
        return Source(name or run.summary.scenario, run.summary)
    if isinstance(run, str | os.PathLike):
        source = source_of(Path(run))
        return source._replace(name=name or source.name)
    raise InputError("runs", run, "must be a run, a sweep, or the directory of one")
