"""From a sweep's summary to the lines of its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.report.sweep_figure import Point, Series
from fedsim.sweeps.naming import title

EPSILON = "privacy.epsilon"


def abscissa(summary: Mapping[str, Any]) -> str | None:
    """The field on the horizontal axis: epsilon if it varies, else the first number that does."""
    varied = sorted(summary["varied"], key=lambda field: field != EPSILON)
    for field in varied:
        values = {c["varied"].get(field) for c in summary["combinations"]} - {None}
        if len(values) > 1 and all(isinstance(v, float | int) and not isinstance(v, bool) for v in values):
            return str(field)
    return None


def series(summary: Mapping[str, Any], x: str | None, prefix: str = "") -> list[Series]:
    """One per combination of the other fields; those without `x` are levels, and so are all without x."""
    lines: dict[tuple[str, str], list[Point]] = {}
    for one in summary["combinations"]:
        if one["test_error"] is None:
            continue
        label = prefix + title(one["varied"], one["private"], without=(x,) if x else ())
        family = prefix + title(one["varied"], True, without=(x,) if x else ())
        low, high = one["test_error_interval90"]
        at = one["varied"].get(x) if x else None
        lines.setdefault((label, family), []).append(Point(at, one["test_error"], low, high))
    return [Series(label, tuple(points), family) for (label, family), points in lines.items()]


def x_label(field: str | None) -> str:
    """What stands under the axis."""
    if field == EPSILON:
        return "epsilon of each silo"
    return field or ""


def interval_note(trials: Sequence[int]) -> str:
    """How to read the bars."""
    if not trials:
        return ""
    if max(trials) == 1:
        return "one trial"
    count = f"{min(trials)}" if min(trials) == max(trials) else f"{min(trials)} to {max(trials)}"
    return f"mean of {count} trials; bars hold 90 % of them"
