"""The table of a run and its baselines that a person reads, and baselines in words."""

from __future__ import annotations

from fedsim.results.silo_table import Table
from fedsim.results.summary import Baseline, Metrics, Summary, Values
from fedsim.scenario.metric import METRICS, better

NAMES = {
    "majority": "majority class",
    "mean": "mean of the targets",
    "silo_alone": "each silo alone",
    "pooled": "all silos pooled",
}
_NAIVE = ("majority", "mean")


def named(one: Baseline) -> str:
    """What it is called beside a line."""
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
    """How each was found, and on how many records."""
    return [f"{_capital(named(one))}: {_records(one)}; {'; '.join(one.methods)}" for one in baselines]


def _records(one: Baseline) -> str:
    low, high = one.train_records
    return f"{low:,} training records" if low == high else f"{low:,} to {high:,} training records"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


TITLE = "On the same test records"
TWIN = "without noise and clipping"
_CAPTION = "Means. All but a private run's own model is without privacy, and all is simulation only."


def metrics_table(summary: Summary) -> Table:
    """The run, its twin, and baselines; the chosen metric comes first."""
    if not summary.trials.finished:
        return Table("", [], [])
    rows: list[tuple[str, Values]] = [("this run", summary.metrics)]
    if summary.privacy.private and summary.metrics.nonprivate.error is not None:
        rows.append((TWIN, summary.metrics.nonprivate))
    rows += [(named(one), one) for one in reversed(summary.baselines)]
    names = [name for name in METRICS if any(values.spread(name) for _, values in rows)]
    names.sort(key=lambda name: name != summary.metrics.metric)
    titles = [METRICS[name].short for name in names]
    cells = [[label, *(_cell(values, name) for name in names)] for label, values in rows]
    caption = "Means." if summary.deployment is not None else _CAPTION
    return Table(caption, ["", *titles], cells, short=["", *(title.replace(" ", "\n") for title in titles)])


def _cell(values: Values, name: str) -> str:
    found = values.spread(name)
    return "-" if found is None else f"{found.mean:.3f}" if abs(found.mean) < 1000 else f"{found.mean:.4g}"
