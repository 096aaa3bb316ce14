"""The table of a run and its baselines that a person reads, in a terminal and on a page."""

from __future__ import annotations

from fedsim.results.baseline_lines import named
from fedsim.results.silo_table import Table
from fedsim.results.summary import Summary, Values
from fedsim.scenario.metric import METRICS

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
