"""Several runs, sweeps and published points as rows of one table and lines of one figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedsim.common.errors import InputError
from fedsim.report.sweep_figure import Point, Series
from fedsim.results.summary import FORMAT as RUN_FORMAT
from fedsim.sweeps.naming import title
from fedsim.sweeps.series import EPSILON
from fedsim.sweeps.summary import FORMAT, SHARED


@dataclass(frozen=True)
class Compared:
    """One mean error: whose, at which epsilon (None: without privacy or unknown), and its 90 % interval."""

    source: str
    series: str
    epsilon: float | None
    error: float
    low: float | None
    high: float | None
    trials: int | None
    family: str = ""


class Source(NamedTuple):
    """A run's or sweep's rows, what its error measures, and whether its runs share noise."""

    rows: list[Compared]
    error: str
    shared: bool


def read(directory: Path) -> Source:
    """What is compared of a run or sweep directory.

    Raises:
        InputError: it is none, was left unfinished, or another version of fedsim wrote it.
    """
    file = directory / "summary.json"
    if not file.is_file():
        begun = (directory / "cells").is_dir()
        expected = "its sweep has not finished; run it to the end" if begun else "no run or sweep directory"
        raise InputError("RUN", str(directory), f"{expected} (there is no summary.json)")
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        kind = summary.get("format")
    except (OSError, ValueError, AttributeError):
        raise InputError("RUN", str(file), "broken: not a JSON object; run the scenario again") from None
    try:
        if kind == FORMAT:
            rows = _of_sweep(summary, directory.name)
            return Source(rows, summary["error"], SHARED in summary["privacy"]["not_private"])
        if kind == RUN_FORMAT:
            return Source(_of_run(summary, directory), summary["metrics"]["error"], False)
        reason = f"it is of format {kind!r} and this one reads {RUN_FORMAT!r} (runs) and {FORMAT!r}"
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else "its contents are not as expected"
    expected = f"written by another version of fedsim: {reason}; run the scenario again with this version"
    raise InputError("RUN", str(file), expected)


def _of_sweep(summary: Mapping[str, Any], source: str) -> list[Compared]:
    rows = []
    for one in summary["combinations"]:
        if one["test_error"] is None:
            continue
        low, high = one["test_error_interval90"]
        names = [title(one["varied"], private, without=(EPSILON,)) for private in (one["private"], True)]
        limit = one["epsilon_budget"]
        at = one["epsilon_guaranteed"] if limit is None else limit  # what it costs, where nothing limits it
        rows.append(Compared(source, names[0], at, one["test_error"], low, high, one["trials"], names[1]))
    return rows


def _of_run(summary: Mapping[str, Any], directory: Path) -> list[Compared]:
    rows = []
    metrics, name, trials = summary["metrics"], str(summary["algorithm"]), summary["trials"]["finished"]
    private = summary["privacy"]["mechanism"] != "none"
    for suffix, kind in (("", private), ("_nonprivate", False)):
        error = metrics[f"test_error{suffix}"]
        if error is None or (suffix and not private):  # the run itself is without privacy
            continue
        low, high = metrics[f"test_error{suffix}_interval90"]
        label = title({"algorithm": name}, kind)
        at = _budget(directory, summary) if kind else None
        rows.append(Compared(directory.name, label, at, error, low, high, trials, name))
    if not rows:
        raise InputError(
            "RUN", str(directory), "no trial of it is complete; run its scenario.yaml to the end"
        )
    return rows


def _budget(directory: Path, summary: Mapping[str, Any]) -> float | None:
    """The largest epsilon of the run's silos: what limits it, or what it costs where nothing does."""
    file = directory / "scenario.yaml"
    try:
        epsilon = yaml.safe_load(file.read_text(encoding="utf-8"))["privacy"]["epsilon"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        raise InputError("RUN", str(file), "missing or broken; it says the run's epsilon") from None
    if epsilon == "unlimited":
        costs = [silo["epsilon_guaranteed"] for silo in summary["privacy"]["silos"]]
        return None if None in costs else max(costs, default=None)
    values = epsilon.values() if isinstance(epsilon, dict) else epsilon
    return float(values if isinstance(values, int | float) else max(values))


def lines(rows: Sequence[Compared]) -> list[Series]:
    """One line per source and series; the source is named where there are several."""
    several = len({row.source for row in rows}) > 1
    found: dict[tuple[str, str, bool], list[Point]] = {}
    for row in rows:
        prefix = f"{row.source}: " if several else ""
        key = prefix + row.series, prefix + (row.family or row.series), row.trials is None
        found.setdefault(key, []).append(Point(row.epsilon, row.error, row.low, row.high))
    return [Series(label, tuple(p), family, published) for (label, family, published), p in found.items()]
