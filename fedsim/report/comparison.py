"""Several runs, sweeps and published points as rows of one table and lines of one figure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import atomic_directory
from fedsim.report.style import save
from fedsim.report.summary import FILE, Baseline, Summary, read_summary
from fedsim.report.sweep_figure import Point, Series, draw
from fedsim.report.sweep_page import CLAIMED, EPSILON, interval_note, x_label
from fedsim.report.sweep_summary import SweepSummary, is_sweep, read_sweep, title
from fedsim.report.texts import named
from fedsim.scenario.metric import METRICS

_REQUIRED, _OPTIONAL = ("series", "epsilon"), ("low", "high")
COLUMNS = ("source", "series", "epsilon", "value", "low", "high", "trials")
FILES = ("comparison.csv", "comparison.png", "comparison.svg")


@dataclass(frozen=True)
class Compared:
    """One mean: whose, at which epsilon (None: without privacy or unknown), and its 90 % interval.

    `trials` is None for a published point; series of one `family` look alike.
    """

    source: str
    series: str
    epsilon: float | None
    value: float
    low: float | None
    high: float | None
    trials: int | None
    family: str = ""


@dataclass(frozen=True)
class ComparisonData:
    """Rows in the order of their sources.

    Args:
        rows: means.
        metric: what is compared.
        error: what the error is.
        shares_noise: whether the runs of some sweep carry no guarantee together.
    """

    rows: tuple[Compared, ...]
    metric: str
    error: str
    shares_noise: bool

    def lines(self) -> list[Series]:
        """One per source and series; the source is named where there are several."""
        several = len({row.source for row in self.rows}) > 1
        series: dict[tuple[str, str, bool], list[Point]] = {}
        for row in self.rows:
            prefix = f"{row.source}: " if several else ""
            key = prefix + row.series, prefix + (row.family or row.series), row.trials is None
            series.setdefault(key, []).append(Point(row.epsilon, row.value, row.low, row.high))
        return [
            Series(label, tuple(p), family, published) for (label, family, published), p in series.items()
        ]

    def table(self) -> list[dict[str, Any]]:
        """The rows by `COLUMNS`; the metric's name replaces `value`."""
        names = [self.metric if name == "value" else name for name in COLUMNS]
        return [dict(zip(names, (getattr(row, c) for c in COLUMNS), strict=True)) for row in self.rows]

    @property
    def title(self) -> str:
        """The figure's title: the error in words, or the metric's."""
        return self.error if self.metric == "error" else METRICS[self.metric].title

    def figure(self) -> Figure:
        """A figure of the metric against epsilon."""
        note = interval_note([row.trials for row in self.rows if row.trials])
        return draw(self.lines(), [x_label(EPSILON)], METRICS[self.metric].title, self.title, note)


class Source(NamedTuple):
    """A run or a sweep, and what it is called."""

    name: str
    summary: Summary | SweepSummary


def compared(
    sources: Sequence[Source], points: Path | None = None, metric: str | None = None
) -> ComparisonData:
    """Compare finished runs and sweeps.

    Args:
        sources: at least one.
        points: a CSV file of published points: series, epsilon, error (or another metric)[, low, high].
        metric: what is compared; None: what the first source's scenario chose.

    Raises:
        InputError: a run was left unfinished, the file of points cannot be used, or two sources measure
            different errors.
    """
    if not sources:
        raise InputError("RUN", [], "name at least one run or sweep")
    rows, shared, first = list[Compared](), False, sources[0]
    metric = _known(metric) if metric else _chosen(first)
    for source in sources:
        if (error := _error(source)) != _error(first):
            hint = f"measures {error!r} and {first.name} {_error(first)!r}; compare runs of one kind"
            raise InputError("RUN", source.name, hint)
        if isinstance(source.summary, SweepSummary):
            rows += _of_sweep(source.summary, source.name, metric)
            shared |= source.summary.shares_noise
        else:
            rows += _of_run(source.summary, source.name, metric)
        rows += _baselines(source, metric, rows)
    return ComparisonData(
        (*rows, *(_read_points(points, metric) if points else [])), metric, _error(first), shared
    )


def _known(metric: str) -> str:
    if metric not in METRICS:
        raise InputError("metric", metric, suggest(metric, METRICS))
    return metric


def _chosen(source: Source) -> str:
    summary = source.summary
    return summary.metric if isinstance(summary, SweepSummary) else summary.metrics.metric


def source_of(directory: Path) -> Source:
    """The run or sweep of a directory, from its files alone.

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


def write(comparison: ComparisonData, folder: Path) -> None:
    """Write the rows as CSV beside the figure as PNG and SVG (`FILES`) into a new folder."""
    with atomic_directory(folder) as draft:
        with (draft / FILES[0]).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            table = comparison.table()
            writer.writerow(table[0])
            writer.writerows(row.values() for row in table)
        save(comparison.figure(), draft, "comparison")


def _of_sweep(sweep: SweepSummary, source: str, metric: str) -> list[Compared]:
    rows = []
    for row in sweep.combinations:
        if (spread := row.spread(metric)) is None:
            continue
        series, family = (
            title(row.varied, private, without=[EPSILON, CLAIMED]) for private in (row.private, True)
        )
        limit = row.epsilon_budget
        at = row.epsilon_guaranteed if limit is None else limit  # what it costs, where nothing limits it
        rows.append(Compared(source, series, at, *spread, row.trials, family))
    if not rows:
        raise InputError("RUN", source, f"has no {METRICS[metric].title}")
    return rows


def _of_run(run: Summary, source: str, metric: str) -> list[Compared]:
    rows = []
    for private in [True, False] if run.privacy.private else [False]:
        spread = (run.metrics if private or not run.privacy.private else run.metrics.nonprivate).spread(
            metric
        )
        if spread is not None:
            label = title({"algorithm": run.algorithm}, private)
            at = _epsilon(run) if private else None
            rows.append(Compared(source, label, at, *spread, run.trials.finished, run.algorithm))
    if not rows:
        hint = "no trial of it is complete; run its scenario.yaml to the end"
        if run.deployment is not None and not run.deployment.measured:
            hint = f"has no {METRICS[metric].title}: it was deployed without public test records"
        elif run.trials.finished:
            hint = f"has no {METRICS[metric].title}"
        raise InputError("RUN", source, hint)
    return rows


def _baselines(source: Source, metric: str, known: Sequence[Compared]) -> list[Compared]:
    """The baselines of a source that no earlier one has: runs on the same records share them."""
    result = [
        Compared(source.name, label, None, *spread, trials)
        for label, one, trials in _levels(source.summary)
        if (spread := one.spread(metric)) is not None
    ]
    old = {(row.series, row.value) for row in known}
    return [row for row in result if (row.series, row.value) not in old]


def _levels(summary: Summary | SweepSummary) -> list[tuple[str, Baseline, int]]:
    if isinstance(summary, SweepSummary):
        return [(label, one, summary.trials) for label, one in summary.levels()]
    return [(named(one), one, summary.trials.finished) for one in summary.baselines]


def _epsilon(run: Summary) -> float | None:
    """The largest of the silos': what limits the run, or what it costs where nothing does."""
    limits = [silo.epsilon_budget for silo in run.privacy.silos]
    values = [silo.epsilon_guaranteed for silo in run.privacy.silos] if None in limits else limits
    return None if None in values else max((value for value in values if value is not None), default=None)


def _read_points(path: Path, metric: str) -> list[Compared]:
    """The rows of a CSV file of published points; an empty epsilon means without privacy."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for name in (*_REQUIRED, metric):
                if name not in (reader.fieldnames or []):
                    columns = f"columns are {', '.join((*_REQUIRED, metric, *_OPTIONAL))}"
                    raise InputError("--points", str(path), f"has no column {name!r}; {columns}")
            rows = [_point(path, reader.line_num, row, metric) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise InputError("--points", str(path), f"cannot be read ({reason})") from None
    if not rows:
        raise InputError("--points", str(path), "has a header and no points")
    return rows


def _point(path: Path, line: int, row: dict[str, str | None], metric: str) -> Compared:
    value = _number(path, line, metric, row.get(metric))
    if value is None:
        raise InputError(f"{path.name} line {line}, {metric}", row.get(metric), "a number is required")
    epsilon, low, high = (_number(path, line, name, row.get(name)) for name in ("epsilon", "low", "high"))
    if epsilon is not None and epsilon <= 0:
        raise InputError(f"{path.name} line {line}, epsilon", epsilon, "above 0, or empty for no privacy")
    if not (low if low is not None else value) <= value <= (high if high is not None else value):
        raise InputError(
            f"{path.name} line {line}, {metric}", value, f"between low and high, {low} and {high}"
        )
    return Compared(path.name, row.get("series") or path.stem, epsilon, value, low, high, None)


def _number(path: Path, line: int, name: str, text: str | None) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{path.name} line {line}, {name}", text, "a finite number")
    return value
