"""The table of silos that a person reads, in a terminal and on a page: its columns, rows and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedsim.privacy.rounding import UNBOUNDED, shown_down, shown_up
from fedsim.results.summary import Baseline, Metrics, SiloRow, Summary, Values
from fedsim.scenario.metric import METRICS, better

SILOS_TITLE = "Epsilon per silo (replace one record)"
_TIGHTEST = 20


@dataclass(frozen=True)
class TextTable:
    """Text in rows; `total` is a last row for all, `short` titles for a terminal; empty where not needed."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    total: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)


class _Column(NamedTuple):
    title: str
    short: str
    write: Callable[[Any], str]


def given(value: float | None) -> str:
    """A budget, which is an input and not a result."""
    return "unlimited" if value is None else f"{value:.6g}"


def plain(value: float | None) -> str:
    """A number that is no promise, to the nearest."""
    return UNBOUNDED if value is None else f"{value:.4g}"


_COLUMNS = {
    "n": _Column("records n", "n", lambda count: f"{count:,}"),
    "epsilon_budget": _Column("budget epsilon", "budget", given),
    "delta": _Column("delta", "delta", shown_up),
    "epsilon_guaranteed": _Column("guaranteed epsilon (true)", "guaranteed", shown_up),
    "epsilon_colluding": _Column("if they collude", "if they\ncollude", shown_up),
    "epsilon_attainable": _Column("true epsilon at least", "at least", shown_down),
    "epsilon_claimed": _Column("claimed epsilon", "claimed", shown_up),
    "epsilon_dp_accounting": _Column("verified epsilon", "verified", shown_up),
    "epsilon_spent": _Column("spent epsilon", "spent", shown_up),
    "noise_multiplier": _Column("noise multiplier", "noise\nmult.", plain),
    "releases": _Column("releases", "releases", lambda count: f"{count:,}"),
}
_OPTIONAL = (
    "epsilon_colluding",
    "epsilon_attainable",
    "epsilon_claimed",
    "epsilon_dp_accounting",
    "epsilon_spent",
)
"""Shown where any silo has one."""
_SAID = ("epsilon_colluding",)
"""Shown where it is stated that there is none, too."""


def silo_table(silos: Sequence[SiloRow], most: int) -> TextTable:
    """Up to `most` silos as they are; of more, the 20 with the least slack and the range of all of them."""
    keys = [key for key in _COLUMNS if key not in _OPTIONAL or any(_says(silo, key) for silo in silos)]
    if "epsilon_claimed" in keys and all(silo.epsilon_budget is None for silo in silos):
        keys.remove("epsilon_budget")  # a claim stands in its place
    few = len(silos) <= most
    shown = silos if few else sorted(silos, key=slack)[:_TIGHTEST]
    caption = f"For replacing one record: the {_TIGHTEST} of {len(silos):,} silos with the least slack."
    return TextTable(
        "For replacing one record." if few else caption,
        ["silo", *(_COLUMNS[key].title for key in keys)],
        [[silo.name, *(_cell(silo, key) for key in keys)] for silo in shown],
        [] if few else [f"all {len(silos):,} silos", *(_range(key, silos) for key in keys)],
        ["silo", *(_COLUMNS[key].short for key in keys)],
    )


def slack(silo: SiloRow) -> float:
    """Share of the budget that the guarantee leaves; all of it where it is unlimited."""
    if silo.epsilon_budget is None:
        return 1.0
    if silo.epsilon_guaranteed is None:
        return -math.inf
    return 1 - silo.epsilon_guaranteed / silo.epsilon_budget


def _says(silo: SiloRow, key: str) -> bool:
    return getattr(silo, key) is not None or (key in _SAID and key in silo.model_fields_set)


def _cell(silo: SiloRow, key: str) -> str:
    return _COLUMNS[key].write(getattr(silo, key))


def _range(key: str, silos: Sequence[SiloRow]) -> str:
    values = [getattr(silo, key) for silo in silos]
    order = sorted(values, key=lambda value: math.inf if value is None else value)
    low, high = map(_COLUMNS[key].write, (order[0], order[-1]))
    return low if low == high else f"{low} to {high}"


NAMES = {
    "majority": "majority class",
    "mean": "mean of the targets",
    "silo_alone": "each silo alone",
    "pooled": "all silos pooled",
}
_NAIVE = ("majority", "mean")


def named(one: Baseline) -> str:
    """A baseline's label in tables and figures."""
    return f"{NAMES[one.name]} (mean of {one.silos})" if one.silos else NAMES[one.name]


def no_better(metrics: Metrics, baselines: list[Baseline]) -> list[str]:
    """A line where the model is no better than the majority class or mean, by its metric or by its error."""
    naive = next((one for one in baselines if one.name in _NAIVE), None)
    if naive is None:
        return []
    beaten = [
        f"{METRICS[name].title} {own.mean:.4f}, and of the {NAMES[naive.name]} {other.mean:.4f}"
        for name in dict.fromkeys((metrics.metric, "error"))
        if (own := metrics.spread(name)) is not None
        and (other := naive.spread(name)) is not None
        and not better(name, own.mean, other.mean)
    ]
    return (
        [f"the model is no better than predicting the {NAMES[naive.name]}: {'; '.join(beaten)}"]
        if beaten
        else []
    )


def methods(baselines: list[Baseline]) -> list[str]:
    """For each baseline its method and the number of training records."""
    return [f"{_capital(named(one))}: {_records(one)}; {'; '.join(one.methods)}" for one in baselines]


def _records(one: Baseline) -> str:
    low, high = one.train_records
    return f"{low:,} training records" if low == high else f"{low:,} to {high:,} training records"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


METRICS_TITLE = "On the same test records"
TWIN = "without noise and clipping"
_CAPTION = "Means. All but a private run's own model is without privacy, and all is simulation only."


def metrics_table(summary: Summary) -> TextTable:
    """Metrics of the run, the non-private baseline and others; the chosen metric comes first."""
    if not summary.trials.finished:
        return TextTable("", [], [])
    rows: list[tuple[str, Values]] = [("this run", summary.metrics)]
    if summary.privacy.private and summary.metrics.nonprivate.error is not None:
        rows.append((TWIN, summary.metrics.nonprivate))
    rows += [(named(one), one) for one in reversed(summary.baselines)]
    names = [name for name in METRICS if any(values.spread(name) for _, values in rows)]
    names.sort(key=lambda name: name != summary.metrics.metric)
    titles = [METRICS[name].short for name in names]
    cells = [[label, *(_value(values, name) for name in names)] for label, values in rows]
    caption = "Means." if summary.deployment is not None else _CAPTION
    return TextTable(
        caption, ["", *titles], cells, short=["", *(title.replace(" ", "\n") for title in titles)]
    )


def _value(values: Values, name: str) -> str:
    found = values.spread(name)
    return "-" if found is None else f"{found.mean:.3f}" if abs(found.mean) < 1000 else f"{found.mean:.4g}"
