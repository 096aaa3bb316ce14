"""What single trials of a sweep came to, as curves of one algorithm in one setting.

Trial t of every combination has the same split of the records, so that two curves are paired by trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.report.arrow import cells_of
from fedsim.report.sweep_summary import SweepSummary, read_only, title

EPSILONS = ("privacy.epsilon", "privacy.claimed_epsilon")
SERIES = ("algorithm",)
Floats = NDArray[np.float64]
ByTrial = dict[int, float]


@dataclass(frozen=True)
class Curve:
    """One algorithm in one setting; `at` has each trial's metric by epsilon, None without privacy.

    `wrong` has its share of mistakes too, where the metric is another.
    """

    setting: str
    name: str
    private: bool
    at: dict[float | None, ByTrial] = field(default_factory=dict)
    wrong: dict[float | None, ByTrial] = field(default_factory=dict)


def counts_mistakes(summary: SweepSummary) -> bool:
    """Whether the error is a share of mistakes."""
    return "misclassified" in (summary.error_name or "")


def with_accuracy(summary: SweepSummary) -> bool:
    """Whether mistakes are counted beside a metric that is another."""
    return summary.metric != "error" and counts_mistakes(summary)


def settings_of(varied: Sequence[str], series: Sequence[str] = SERIES) -> list[str]:
    """The varied fields that set curves apart into figures of their own."""
    return [name for name in varied if name not in (*series, *EPSILONS)]


def epsilon_field(varied: Sequence[str]) -> str | None:
    """The field that is the figure's axis."""
    return next((name for name in EPSILONS if name in varied), None)


def called(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """A row's labels in these fields; empty where it has none."""
    own = {name: row[name] for name in fields if row.get(name) is not None}
    return title(own, private=True) if own else ""


def curves_of(
    summary: SweepSummary, cells: Sequence[Mapping[str, Any]], series: Sequence[str]
) -> list[Curve]:
    """One for each setting and algorithm, and one for its baseline.

    Args:
        summary: names what was varied, and the metric.
        cells: rows of `fedsim.report.arrow.cells_of`; those without a finite metric are left out.
        series: varied fields that name a curve.
    """
    axis, apart = epsilon_field(summary.varied), settings_of(summary.varied, series)
    found: dict[tuple[str, str, bool], Curve] = {}
    for row in cells:
        if row[summary.metric] is None or not np.isfinite(row[summary.metric]):
            continue
        key = called(row, apart), called(row, series), bool(row["private"])
        curve = found.setdefault(key, Curve(*key))
        at = row.get(axis) if axis and row["private"] else None
        curve.at.setdefault(at, {})[row["trial"]] = row[summary.metric]
        if with_accuracy(summary):
            curve.wrong.setdefault(at, {})[row["trial"]] = row["error"]
    return list(found.values())


def read_curves(place: Path, series: Sequence[str] = SERIES) -> tuple[SweepSummary, list[Curve]]:
    """Of a sweep's directory; InputError where it is not finished."""
    summary = read_only(SweepSummary, place)
    return summary, curves_of(summary, cells_of(place).to_pylist(), series)


def paired(one: ByTrial, other: ByTrial) -> tuple[Floats, Floats]:
    """The values of both in the trials that both have."""
    common = sorted(one.keys() & other.keys())
    return np.array([one[t] for t in common]), np.array([other[t] for t in common])
