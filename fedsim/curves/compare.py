"""Several runs, sweeps and published points as rows of one table and lines of one figure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from fedsim.common.errors import InputError
from fedsim.common.files import whole_directory
from fedsim.curves.naming import title
from fedsim.curves.points import Compared, read_points
from fedsim.curves.series import EPSILON, interval_note, x_label
from fedsim.curves.sweep_summary import SweepSummary, is_sweep, read_sweep
from fedsim.report.style import save
from fedsim.report.sweep_figure import Point, Series, draw
from fedsim.results.summary import FILE, Summary, read_summary

COLUMNS = ("source", "series", "epsilon", "error", "low", "high", "trials")
FILES = ("comparison.csv", "comparison.png", "comparison.svg")


@dataclass(frozen=True)
class Comparison:
    """Rows in the order of their sources.

    Args:
        rows: mean errors.
        error: what they measure.
        shares_noise: whether the runs of some sweep carry no guarantee together.
    """

    rows: tuple[Compared, ...]
    error: str
    shares_noise: bool

    def lines(self) -> list[Series]:
        """One per source and series; the source is named where there are several."""
        several = len({row.source for row in self.rows}) > 1
        found: dict[tuple[str, str, bool], list[Point]] = {}
        for row in self.rows:
            prefix = f"{row.source}: " if several else ""
            key = prefix + row.series, prefix + (row.family or row.series), row.trials is None
            found.setdefault(key, []).append(Point(row.epsilon, row.error, row.low, row.high))
        return [Series(label, tuple(p), family, published) for (label, family, published), p in found.items()]

    def figure(self) -> Figure:
        """Error against epsilon."""
        note = interval_note([row.trials for row in self.rows if row.trials])
        return draw(self.lines(), x_label(EPSILON), "test error", self.error, note)


class Source(NamedTuple):
    """A run or a sweep, and what it is called."""

    name: str
    summary: Summary | SweepSummary


def compare(sources: Sequence[Source], points: Path | None = None) -> Comparison:
    """Compare finished runs and sweeps.

    Args:
        sources: at least one.
        points: a CSV file of published points (`fedsim.curves.points`).

    Raises:
        InputError: a run was left unfinished, the file of points cannot be used, or two sources measure
            different errors.
    """
    if not sources:
        raise InputError("RUN", [], "name at least one run or sweep")
    rows, shared, first = list[Compared](), False, sources[0]
    for source in sources:
        if (error := _error(source)) != _error(first):
            expected = f"measures {error!r} and {first.name} {_error(first)!r}; compare runs of one kind"
            raise InputError("RUN", source.name, expected)
        if isinstance(source.summary, SweepSummary):
            rows += _of_sweep(source.summary, source.name)
            shared |= source.summary.shares_noise
        else:
            rows += _of_run(source.summary, source.name)
    return Comparison((*rows, *(read_points(points) if points else [])), _error(first), shared)


def source_of(directory: Path) -> Source:
    """What a directory holds, from its files alone.

    Raises:
        InputError: it is neither a run's nor a sweep's, was left unfinished, or is of another version.
    """
    if is_sweep(directory):
        return Source(directory.name, read_sweep(directory))
    if not (directory / FILE).is_file():
        raise InputError("RUN", str(directory), f"no run or sweep directory (there is no {FILE})")
    return Source(directory.name, read_summary(directory))


def _error(source: Source) -> str:
    summary = source.summary
    return (summary.error_name or "") if isinstance(summary, SweepSummary) else summary.metrics.error_name


def write(comparison: Comparison, folder: Path) -> None:
    """Write the rows as CSV beside the figure as PNG and SVG (`FILES`) into a new folder."""
    with whole_directory(folder) as draft:
        with (draft / FILES[0]).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([getattr(row, name) for name in COLUMNS] for row in comparison.rows)
        save(comparison.figure(), draft, "comparison")


def _of_sweep(sweep: SweepSummary, source: str) -> list[Compared]:
    rows = []
    for row in sweep.combinations:
        if row.error_spread is None:
            continue
        series, family = (title(row.varied, private, without=[EPSILON]) for private in (row.private, True))
        limit = row.epsilon_budget
        at = row.epsilon_guaranteed if limit is None else limit  # what it costs, where nothing limits it
        rows.append(Compared(source, series, at, *row.error_spread, row.trials, family))
    return rows


def _of_run(run: Summary, source: str) -> list[Compared]:
    rows = []
    for private in [True, False] if run.privacy.private else [False]:
        spread = run.metrics.spread("error", nonprivate=run.privacy.private and not private)
        if spread is not None:
            label = title({"algorithm": run.algorithm}, private)
            at = _epsilon(run) if private else None
            rows.append(Compared(source, label, at, *spread, run.trials.finished, run.algorithm))
    if not rows:
        expected = "no trial of it is complete; run its scenario.yaml to the end"
        if run.deployment is not None:
            expected = "has no test error: it was deployed without public test records"
        raise InputError("RUN", source, expected)
    return rows


def _epsilon(run: Summary) -> float | None:
    """The largest of the silos': what limits the run, or what it costs where nothing does."""
    limits = [silo.epsilon_budget for silo in run.privacy.silos]
    values = [silo.epsilon_guaranteed for silo in run.privacy.silos] if None in limits else limits
    return None if None in values else max((value for value in values if value is not None), default=None)
