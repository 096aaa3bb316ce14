"""The page's figures: one for each setting of a sweep, with published points over the thesis's variant."""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.thesis.trials import SERIES, called, epsilon_field, settings_of
from fedsim.report.style import save
from fedsim.report.sweep_figure import Point, draw
from fedsim.report.sweep_page import interval_note
from fedsim.report.sweep_page import points as points_over
from fedsim.report.sweep_summary import BaselineGroup, SweepSummary
from fedsim.scenario.metric import METRICS

AXIS = {
    "privacy.epsilon": "epsilon of each silo",
    "privacy.claimed_epsilon": "claimed epsilon; the true one: see the table",
    None: "",
}


def settings(summary: SweepSummary, names: Sequence[str] = SERIES) -> list[str]:
    """The settings of a sweep, each with its own figure; one without a name where nothing else varies."""
    apart = settings_of(summary.varied, names)
    return list(dict.fromkeys(called(row.varied, apart) for row in summary.combinations))


def of_setting(summary: SweepSummary, setting: str, names: Sequence[str] = SERIES) -> SweepSummary:
    """The part of a sweep that is in one setting, in which that is no varied field any more."""
    apart = settings_of(summary.varied, names)
    kept = [n for n, row in enumerate(summary.combinations) if called(row.varied, apart) == setting]
    rows = [summary.combinations[n] for n in kept]
    rest = [
        row.model_copy(update={"varied": {k: v for k, v in row.varied.items() if k not in apart}})
        for row in rows
    ]
    return summary.model_copy(
        update={
            "combinations": rest,
            "varied": [name for name in summary.varied if name not in apart],
            "baselines": _groups(summary.baselines, kept, apart),
        }
    )


def _groups(
    groups: Sequence[BaselineGroup], kept: Sequence[int], apart: Sequence[str]
) -> list[BaselineGroup]:
    place = {number: at for at, number in enumerate(kept)}
    found = []
    for group in groups:
        own = [place[number] for number in group.combinations if number in place]
        if own:
            varied = {key: value for key, value in group.varied.items() if key not in apart}
            found.append(group.model_copy(update={"combinations": own, "varied": varied}))
    return found


def figure(summary: SweepSummary, title: str, points: Mapping[str, Sequence[Point]] | None = None) -> Figure:
    """The metric against epsilon, of one setting; `points` are published ones, by the curve they are of."""
    axis = epsilon_field(summary.varied)
    trials = [row.trials for row in summary.combinations if row.trials]
    published = [
        point._replace(series=f"{name}, published", family=name)
        for name, own in (points or {}).items()
        for point in own
    ]
    return draw(
        [*_in_sight(points_over(summary, axis), summary), *published],
        [AXIS[axis]],
        METRICS[summary.metric].title,
        title,
        interval_note(trials),
    )


def _in_sight(points: Sequence[Point], summary: SweepSummary) -> list[Point]:
    """Without baselines so far away that the curves would be one line: those are in the table."""
    levels = {label for label, _ in summary.levels()}
    curves = [point.value for point in points if point.series not in levels]
    low, high = min(curves, default=0.0), max(curves, default=1.0)
    room = (high - low) / 2
    return [p for p in points if p.series not in levels or low - room <= p.value <= high + room]


def published_points(path: Path, scenario: str, number: str) -> dict[str, list[Point]]:
    """Of one figure of the thesis, by curve; an empty epsilon is its level without privacy."""
    found: dict[str, list[Point]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["scenario"], row["figure"]) == (scenario, number) and row["epsilon"]:
                point = Point(row["series"], float(row["epsilon"]), float(row["error"]), trials=None)
                found.setdefault(row["series"], []).append(point)
    return found


def stem(*parts: str) -> str:
    """A file's name of letters, digits and dashes.

    >>> stem("mnist_mlp", "honest", "M = 25, R = 50")
    'mnist-mlp-honest-m-25-r-50'
    """
    return "-".join(filter(None, re.split(r"[^a-z0-9]+", "-".join(parts).lower())))


def write(figure: Figure, folder: Path, name: str) -> str:
    """Write NAME.svg into the folder; returns the file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        save(figure, Path(scratch), name)
        (folder / f"{name}.svg").write_bytes((Path(scratch) / f"{name}.svg").read_bytes())
    return f"{name}.svg"
