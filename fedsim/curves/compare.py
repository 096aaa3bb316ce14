"""Several runs, sweeps and published points as rows of one table and lines of one figure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedsim.common.errors import InputError
from fedsim.common.files import whole_directory
from fedsim.curves.naming import title
from fedsim.curves.points import Compared, read_points
from fedsim.curves.series import EPSILON, interval_note, x_label
from fedsim.curves.sweep_summary import SweepSummary, is_sweep, read_sweep
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


class _Source(NamedTuple):
    rows: list[Compared]
    error: str
    shares_noise: bool


def compare(directories: Sequence[Path], points: Path | None = None) -> Comparison:
    """Compare finished runs and sweeps, from their files alone.

    Args:
        directories: of runs and sweeps.
        points: a CSV file of published points (`fedsim.curves.points`).

    Raises:
        InputError: a directory was left unfinished or is of another version, the file of points cannot be
            used, or two directories measure different errors.
    """
    sources = [_read(directory) for directory in directories]
    for directory, source in zip(directories, sources, strict=True):
        if source.error != sources[0].error:
            first = f"{directories[0]} {sources[0].error!r}"
            expected = f"measures {source.error!r} and {first}; compare runs of one kind"
            raise InputError("RUN", str(directory), expected)
    rows = [row for source in sources for row in source.rows]
    published = read_points(points) if points else []
    shared = any(source.shares_noise for source in sources)
    return Comparison((*rows, *published), sources[0].error, shared)


def write(comparison: Comparison, folder: Path) -> None:
    """Write the rows as CSV beside the figure as PNG and SVG (`FILES`) into a new folder."""
    note = interval_note([row.trials for row in comparison.rows if row.trials])
    with whole_directory(folder) as draft:
        with (draft / FILES[0]).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([getattr(row, name) for name in COLUMNS] for row in comparison.rows)
        draw(comparison.lines(), x_label(EPSILON), "test error", comparison.error, note, draft, "comparison")


def _read(directory: Path) -> _Source:
    if is_sweep(directory):
        sweep = read_sweep(directory)
        rows = _of_sweep(sweep, directory.name)
        return _Source(rows, sweep.error or "", sweep.shares_noise)
    if not (directory / FILE).is_file():
        raise InputError("RUN", str(directory), f"no run or sweep directory (there is no {FILE})")
    run = read_summary(directory)
    return _Source(_of_run(run, directory), run.metrics.error, False)


def _of_sweep(sweep: SweepSummary, source: str) -> list[Compared]:
    rows = []
    for row in sweep.combinations:
        if row.error is None:
            continue
        series, family = (title(row.varied, private, without=[EPSILON]) for private in (row.private, True))
        limit = row.epsilon_budget
        at = row.epsilon_guaranteed if limit is None else limit  # what it costs, where nothing limits it
        rows.append(Compared(source, series, at, *row.error, row.trials, family))
    return rows


def _of_run(run: Summary, directory: Path) -> list[Compared]:
    rows = []
    for private in [True, False] if run.privacy.private else [False]:
        spread = run.metrics.spread("test_error", nonprivate=run.privacy.private and not private)
        if spread is not None:
            label = title({"algorithm": run.algorithm}, private)
            at = _epsilon(run) if private else None
            rows.append(Compared(directory.name, label, at, *spread, run.trials.finished, run.algorithm))
    if not rows:
        expected = "no trial of it is complete; run its scenario.yaml to the end"
        raise InputError("RUN", str(directory), expected)
    return rows


def _epsilon(run: Summary) -> float | None:
    """The largest of the silos': what limits the run, or what it costs where nothing does."""
    limits = [silo.epsilon_budget for silo in run.privacy.silos]
    values = [silo.epsilon_guaranteed for silo in run.privacy.silos] if None in limits else limits
    return None if None in values else max((value for value in values if value is not None), default=None)
