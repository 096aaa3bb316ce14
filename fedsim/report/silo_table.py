"""The page's table of silos: all of a small federation, the tightest of a large one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedsim.results.read import SiloRow

_ALL, _TIGHTEST = 60, 20
_TITLES = {
    "epsilon_budget": "budget epsilon",
    "epsilon_guaranteed": "guaranteed epsilon (true)",
    "epsilon_claimed": "claimed epsilon",
    "epsilon_spent": "spent epsilon",
    "delta": "delta",
    "n": "records n",
    "noise_multiplier": "noise multiplier",
    "releases": "releases",
}
_EPSILONS = ("epsilon_guaranteed", "epsilon_claimed", "epsilon_spent")


@dataclass(frozen=True)
class PageTable:
    """Text in rows; `total` is a last row for all, empty where there is none."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    total: list[str] = field(default_factory=list)


def silo_table(silos: Sequence[SiloRow]) -> PageTable:
    """Up to 60 silos as they are; of more, the 20 with the least slack and the range of all of them."""
    claimed = any(silo.epsilon_claimed is not None for silo in silos)
    keys = [key for key in _TITLES if claimed or key != "epsilon_claimed"]
    columns = ["silo", *(_TITLES[key] for key in keys)]
    few = len(silos) <= _ALL
    shown = silos if few else sorted(silos, key=slack)[:_TIGHTEST]
    rows = [[silo.name, *(shown_value(key, getattr(silo, key)) for key in keys)] for silo in shown]
    if few:
        return PageTable("For replacing one record.", columns, rows)
    caption = f"For replacing one record: the {_TIGHTEST} of {len(silos):,} silos with the least slack."
    total = [f"all {len(silos):,} silos", *(_range(key, silos) for key in keys)]
    return PageTable(caption, columns, rows, total)


def slack(silo: SiloRow) -> float:
    """Share of the budget that the guarantee leaves; all of it where it is unlimited."""
    if silo.epsilon_budget is None:
        return 1.0
    if silo.epsilon_guaranteed is None:
        return -math.inf
    return 1 - silo.epsilon_guaranteed / silo.epsilon_budget


def _range(key: str, silos: Sequence[SiloRow]) -> str:
    values = [getattr(silo, key) for silo in silos]
    order = sorted(values, key=lambda value: math.inf if value is None else value)
    low, high = shown_value(key, order[0]), shown_value(key, order[-1])
    return low if low == high else f"{low} to {high}"


def shown_value(key: str, value: float | None) -> str:
    """A number for a reader; epsilons that are promises are rounded up, never down."""
    if value is None:
        return "unlimited" if key == "epsilon_budget" else "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{rounded_up(value) if key in _EPSILONS else value:.4g}"


def rounded_up(value: float, digits: int = 4) -> float:
    """The least number of so many significant digits that is not below `value`."""
    if value == 0 or not math.isfinite(value):
        return value
    nearest = float(f"{value:.{digits}g}")
    if nearest >= value:
        return nearest
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return float(f"{value + step / 2:.{digits}g}")
