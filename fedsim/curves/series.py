"""From a sweep's summary to the lines of its figure."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.curves.claims import CLAIMED
from fedsim.curves.naming import title
from fedsim.curves.sweep_summary import SweepSummary
from fedsim.report.sweep_figure import Point, Series
from fedsim.results.summary import spans

EPSILON = "privacy.epsilon"


def abscissa(summary: SweepSummary) -> str | None:
    """The field on the horizontal axis: epsilon if it varies, or a claimed one, else the first number that
    does.
    """
    for field in sorted(summary.varied, key=lambda field: (field != EPSILON, field != CLAIMED)):
        values = {row.varied.get(field) for row in summary.combinations} - {None}
        if len(values) > 1 and all(isinstance(v, float | int) and not isinstance(v, bool) for v in values):
            return field
    return None


def series(summary: SweepSummary, x: str | None) -> list[Series]:
    """One per combination of the other fields; those without `x` are levels, and so are all without x, and
    baselines.
    """
    lines: dict[tuple[str, str], list[Point]] = {}
    for row in summary.combinations:
        if (spread := row.spread(summary.metric)) is None:
            continue
        label, family = (title(row.varied, private, without=[x]) for private in (row.private, True))
        at = row.varied.get(x) if x else None
        lines.setdefault((label, family), []).append(Point(_number(at), *spread))
    found = [Series(label, tuple(points), family) for (label, family), points in lines.items()]
    return found + [
        Series(label, (Point(None, *level),))
        for label, one in summary.levels()
        if (level := one.spread(summary.metric)) is not None
    ]


def _number(value: object) -> float | None:
    return value if isinstance(value, float | int) else None


def x_label(field: str | None) -> str:
    """What stands under the axis."""
    if field == EPSILON:
        return "epsilon of each silo"
    if field == CLAIMED:
        return "claimed epsilon (not the true one)"
    return field or ""


def interval_note(trials: Sequence[int]) -> str:
    """How to read the bars.

    >>> interval_note([3, 3]), interval_note([1])
    ('mean of 3 trials; bars from the lowest to the highest', 'one trial')
    """
    if not trials:
        return ""
    if max(trials) == 1:
        return "one trial"
    count = f"{min(trials)}" if min(trials) == max(trials) else f"{min(trials)} to {max(trials)}"
    return f"mean of {count} trials; bars {spans(max(trials))}"
