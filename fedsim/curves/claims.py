"""A sweep over what a theorem claims: the true epsilon beside each claim, of the silo that it costs most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from fedsim.curves.naming import title
from fedsim.curves.sweep_summary import CombinationRow, SweepSummary
from fedsim.privacy.rounding import shown_down, shown_up

CLAIMED = "privacy.claimed_epsilon"


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
