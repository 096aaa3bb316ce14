"""From a sweep's summary to the lines of its figure, and what is said under it of the claims of theorems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

from fedsim.curves.naming import title
from fedsim.curves.sweep_summary import CombinationRow, SweepSummary
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.report.sweep_figure import Point, Series
from fedsim.results.summary import spans

EPSILON, CLAIMED = "privacy.epsilon", "privacy.claimed_epsilon"


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
    """The text under the horizontal axis."""
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


def true_epsilons(sweep: SweepSummary) -> list[str]:
    """One line for each line of the figure, of all its claims; none where nothing is claimed."""
    return [
        f"{name}: claimed epsilon {_listed(rows, _claim)}; true epsilon {_least(rows)}at most "
        f"{_listed(rows, _most)}"
        for name, rows in _lines(sweep)
    ]


def under_the_axis(sweep: SweepSummary) -> list[str]:
    """The same for a figure, whose axis has the claims: a number for each, where there is one."""
    lines = list(_lines(sweep))
    claims = sorted({_claimed(row) for _, rows in lines for row in rows})
    found = []
    for name, rows in lines:
        costs = {_claimed(row): _short(row) for row in rows}
        found.append(f"true for {name}: {', '.join(costs.get(claim, '-') for claim in claims)}")
    return found


def _lines(sweep: SweepSummary) -> Iterator[tuple[str, list[CombinationRow]]]:
    found: dict[str, list[CombinationRow]] = {}
    for row in sweep.combinations:
        if row.epsilon_claimed is not None:
            found.setdefault(title(row.varied, True, without=[CLAIMED]), []).append(row)
    for name, rows in found.items():
        yield name, sorted(rows, key=_claimed)


def _claimed(row: CombinationRow) -> float:
    return row.epsilon_claimed or 0.0


def _claim(row: CombinationRow) -> str:
    return f"{_claimed(row):g}"


def _most(row: CombinationRow) -> str:
    return _known(row.epsilon_guaranteed, 4)


def _short(row: CombinationRow) -> str:
    cost = row.epsilon_guaranteed
    return _known(cost, 4 if cost is not None and cost > 999 else 3)


def _known(cost: float | None, digits: int) -> str:
    """Infinite where nothing bounds it: `none` would read as if it cost nothing."""
    return shown_up(inf if cost is None else cost, digits)


def _least(rows: list[CombinationRow]) -> str:
    if all(row.epsilon_attainable is None for row in rows):
        return ""
    return f"at least {_listed(rows, lambda row: shown_down(row.epsilon_attainable))}, "


def _listed(rows: list[CombinationRow], write: Callable[[CombinationRow], str]) -> str:
    return ", ".join(map(write, rows))
