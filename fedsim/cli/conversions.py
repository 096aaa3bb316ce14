"""`fedsim privacy --conversions` for people: the silos of largest epsilon, and the federation."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.privacy.convert import Guarantee
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.results.conversions import Conversions, SiloConversions

MOST_ROWS = 5


def show_conversions(console: Console, values: Conversions, most: int = MOST_ROWS) -> None:
    """Print (epsilon, delta) in other units; "no guarantee" where delta would reach 1."""
    console.print(
        f"Central DP of one record, all silos together: {_cell(values.central)} "
        "(a record lies in one silo: the largest epsilon and delta)",
        highlight=False,
    )
    silos = sorted(values.silos, key=_weakest_first)
    table = Table(title="(epsilon, delta) in other units", box=SIMPLE_HEAD)
    table.add_column("silo")
    groups = max((silo.group for silo in silos), key=len)
    for entry in groups:
        table.add_column(f"{entry.records} records", justify="right")
    table.add_column("whole silo", justify="right")
    table.add_column("to set for\nuser level", justify="right")
    for silo in silos[:most]:
        cells = [_cell(entry.guarantee) for entry in silo.group]
        cells += [""] * (len(groups) - len(cells))
        recipe = silo.record_level_for_user_level_budget
        table.add_row(silo.name, *cells, _cell(silo.user_level), _to_set(recipe))
    rules = ", ".join(sorted({silo.group_rule for silo in silos}))
    rest = f"; and {len(silos) - most} more silos (--json)" if len(silos) > most else ""
    table.caption = f"groups by {rules}{rest}"
    console.print(table)


def _weakest_first(silo: SiloConversions) -> float:
    first = silo.group[0].guarantee if silo.group else silo.user_level
    return -first.epsilon if first else float("-inf")


def _cell(guarantee: Guarantee | None) -> str:
    return f"({shown_up(guarantee.epsilon)}, {shown_up(guarantee.delta, 2)})" if guarantee else "no guarantee"


def _to_set(budget: Guarantee | None) -> str:
    """A budget that may be set to what is shown, so rounded down."""
    return (
        f"({shown_down(budget.epsilon)}, {shown_down(budget.delta, 2)})" if budget else "only up to epsilon 1"
    )
