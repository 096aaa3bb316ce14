"""Baselines in words: what each is called, and whether a model is better than knowing no features at all."""

from __future__ import annotations

from fedsim.results.summary import Baseline, Metrics
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
