"""Several runs, sweeps and published points as rows of one table and lines of one figure."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from matplotlib.figure import Figure

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import atomic_directory, check_free
from fedsim.privacy.rounding import shown_up
from fedsim.report import html, sweep_page
from fedsim.report.html import PAGE
from fedsim.report.summary import EPSILON, CombinationRow, Summary
from fedsim.report.sweep_figure import Point, draw
from fedsim.report.sweep_summary import SweepSummary, read_summary, title
from fedsim.report.tables import Table, TextTable, capital, figure_html
from fedsim.report.texts import terms
from fedsim.scenario.metric import METRICS

_COLUMNS = ("source", "series", "x", "value", "low", "high", "trials")
FILES = ("comparison.csv", "comparison.png", "comparison.svg", PAGE)


class Source(NamedTuple):
    """A run or a sweep, and what it is called."""

    name: str
    summary: Summary | SweepSummary


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `fedsim.compare`.

    Args:
        points: means, at their epsilons, in the order of their sources.
        metric: what is compared.
        sources: the runs and sweeps.
        against: the metric that it is compared against, in place of epsilon.
    """

    points: tuple[Point, ...]
    metric: str
    sources: tuple[Source, ...]
    against: str | None = None

    @property
    def errors(self) -> Table:
        """A row per mean: whose, at which epsilon (none: no privacy) or other metric, its 90 % interval."""
        return Table(pa.Table.from_pylist(self._rows()))

    def _rows(self) -> list[dict[str, Any]]:
        names = {"x": self.against or "epsilon", "value": self.metric}
        rows = [point._asdict() for point in self.points]
        return [{names.get(name, name): row[name] for name in _COLUMNS} for row in rows]

    @property
    def text(self) -> TextTable:
        """The same for a reader."""
        columns: dict[str, Callable[[Point], str]] = {
            "from": lambda row: row.source,
            "series": lambda row: row.series,
            METRICS[self.against].short if self.against else "epsilon": self._x,
            METRICS[self.metric].short: _interval,
            "trials": lambda row: "published" if row.trials is None else str(row.trials),
        }
        caption = f"{capital(METRICS[self.metric].title)}, 90 % of trials in brackets"
        return TextTable.of(caption, self.points, columns)

    @property
    def _axis(self) -> str:
        return sweep_page.x_label(self.against or EPSILON)

    def _x(self, row: Point) -> str:
        return shown_up(row.x, 6) if self.against is None else "-" if row.x is None else f"{row.x:.4f}"

    @property
    def title(self) -> str:
        """The figure's title: the error in words, or the metric's."""
        error = self.sources[0].summary.error_name or ""
        return error if self.metric == "error" else METRICS[self.metric].title

    @property
    def not_private(self) -> list[str]:
        """What the guarantees of the sources do not cover, each once."""
        return _each(note for source in self.sources for note in source.summary.privacy.not_private)

    def plot(self, broad: bool = False) -> Figure:
        """A figure of the metric against epsilon, or the other metric; a `broad` one is as wide as a page."""
        note = sweep_page.interval_note([row.trials for row in self.points if row.trials])
        return draw(self.points, [self._axis], METRICS[self.metric].title, self.title, note, broad)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page, the table as CSV and the figure as PNG and SVG (`FILES`) into a new directory.

        InputError if it holds something already, or cannot be written.
        """
        with atomic_directory(check_free(Path(path))) as draft:
            with (draft / FILES[0]).open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                rows = self._rows()
                writer.writerow(rows[0])
                writer.writerows(row.values() for row in rows)
            (draft / PAGE).write_text(self._page(draft), encoding="utf-8")

    @property
    def notices(self) -> list[str]:
        """What stands before any number of what is compared."""
        return _each(line for source in self.sources for line in source.summary.privacy.notices)

    def _page(self, folder: Path) -> str:
        caption = f"{capital(METRICS[self.metric].title)} against {self._axis}"
        stated = zip(*(terms(each.summary.privacy) for each in self.sources), strict=True)
        return html.render(
            "compare.html",
            title=caption,
            description="",
            scenario="",
            sources=[source.name for source in self.sources],
            notices=self.notices,
            figure=html.saved_wide(self.plot, folder, "comparison", f"{caption}: {self.title}."),
            errors=self.text,
            statement=[(own[0][0], "; ".join(_each(text for _, text in own))) for own in stated],
            not_private=self.not_private,
        )

    def __repr__(self) -> str:
        return f"Comparison({len(self.points)} values: {self.title})"

    def _repr_html_(self) -> str:
        return figure_html(self.plot) + self.text.html


def _interval(point: Point) -> str:
    known = point.low is not None and point.high is not None
    return f"{point.value:.4f}" + (f" [{point.low:.4f}, {point.high:.4f}]" if known else "")


def _each(lines: Iterable[str]) -> list[str]:
    """Each line once, without those that another contains."""
    unique = dict.fromkeys(lines)
    return [line for line in unique if not any(line in other and line != other for other in unique)]


def compared(
    sources: Sequence[Source],
    points: Path | None = None,
    metric: str | None = None,
    against: str | None = None,
) -> Comparison:
    """Compare finished runs and sweeps, at least one; arguments and errors as of `fedsim.compare`."""
    if not sources:
        raise InputError("RUN", [], "name at least one run or sweep")
    rows, first = list[Point](), sources[0]
    metric, error = metric or first.summary.metric, first.summary.error_name
    for field, name in (("metric", metric), ("against", against or metric)):
        if name not in METRICS:
            raise InputError(field, name, suggest(name, METRICS))
    for name, summary in sources:
        if summary.error_name != error:
            hint = f"measures {summary.error_name!r} and {first.name} {error!r}; compare runs of one kind"
            raise InputError("RUN", name, hint)
        for wanted in (metric, against or metric):
            if not any(row.spread(wanted) for row in summary.combinations):
                why = ": ".join(filter(None, [f"has no {METRICS[wanted].title}", summary.unmeasured]))
                raise InputError("RUN", name, why)
        along = [sweep_page.abscissa(summary, against)] if against else [EPSILON, sweep_page.CLAIMED]
        rows += sweep_page.points_of(summary, metric, _epsilon, along, name, against)
        known = {(row.series, row.value) for row in rows}  # runs on the same records share baselines
        levels = sweep_page.levels(summary, metric, name, against)
        rows += [row for row in levels if (row.series, row.value) not in known]
    rows += _read_points(points, metric, against) if points else []
    return Comparison(tuple(rows), metric, tuple(sources), against)


def source_of(directory: Path) -> Source:
    """The run or sweep of a directory, from its files alone; InputError as of `read_summary`."""
    return Source(directory.name, read_summary(directory))


def _epsilon(row: CombinationRow) -> float | None:
    """The budget, or what it costs where nothing limits it."""
    return row.epsilon_guaranteed if row.epsilon_budget is None else row.epsilon_budget


def _read_points(path: Path, metric: str, against: str | None) -> list[Point]:
    """The rows of a CSV file of published points; an empty epsilon means without privacy."""
    required = ("series", "epsilon", metric, *([against] if against else []))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for name in required:
                if name not in (reader.fieldnames or []):
                    columns = f"columns are {', '.join((*required, 'low', 'high'))}"
                    raise InputError("--points", str(path), f"has no column {name!r}; {columns}")
            rows = [
                _point(path, reader.line_num, row, metric, against)
                for row in reader
                if not against or (row[against] or "").strip()
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise InputError("--points", str(path), f"cannot be read ({reason})") from None
    if not rows:
        raise InputError("--points", str(path), "has a header and no points")
    return rows


def _point(path: Path, line: int, row: dict[str, str | None], metric: str, against: str | None) -> Point:
    value = _number(path, line, metric, row.get(metric))
    if value is None:
        raise InputError(f"{path.name} line {line}, {metric}", row.get(metric), "a number is required")
    epsilon, low, high = (_number(path, line, name, row.get(name)) for name in ("epsilon", "low", "high"))
    if epsilon is not None and epsilon <= 0:
        raise InputError(f"{path.name} line {line}, epsilon", epsilon, "above 0, or empty for no privacy")
    if not (low if low is not None else value) <= value <= (high if high is not None else value):
        hint = f"between low and high, {low} and {high}"
        raise InputError(f"{path.name} line {line}, {metric}", value, hint)
    series, x = row.get("series") or path.stem, epsilon
    if against:
        varied = {"series": series} | ({} if epsilon is None else {EPSILON: epsilon})
        series, x = title(varied, epsilon is not None), _number(path, line, against, row.get(against))
    return Point(series, x, value, low, high, trials=None, source=path.name)


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
