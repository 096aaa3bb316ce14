"""`fedsim privacy`: the cost of a run before it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import PRIVACY, DataDir, Overrides, ScenarioFile, app, data_from, plain_errors
from fedsim.cli.output import print_notices, print_parameters, print_silos, say
from fedsim.privacy.rounding import shown_down, shown_up

if TYPE_CHECKING:
    from fedsim.privacy.convert import Guarantee
    from fedsim.results.silo_rows import Conversions, SiloConversions

MOST_ROWS = 5
_WIDE = 10_000


@app.command(rich_help_panel=PRIVACY)
def privacy(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Price every silo again by dp-accounting (slower).")
    ] = False,
    conversions: Annotated[
        bool, typer.Option("--conversions", help="Convert to group, user-level and central DP.")
    ] = False,
) -> None:
    """Show what the run would cost each silo and the noise it would use; reads no feature values."""
    with plain_errors(), data_from(data_dir):
        from fedsim.cli import early

        loaded = early.base(scenario, overrides or [])
        from fedsim.api.price import price

        found = price(loaded, verify=verify, conversions=conversions).statement
        if as_json:
            typer.echo(found.json_text())
            return
        console = Console()
        print_notices(console, found.notices)
        print_parameters(console, found.parameters)
        console.print(str(found), highlight=False)
        print_silos(console, found.silos)
        if found.conversions:
            show_conversions(console, found.conversions)


def show_conversions(console: Console, values: Conversions) -> None:
    """Print (epsilon, delta) in other units of the silos of largest epsilon, and of the federation.

    "no guarantee" stands where delta would reach 1.
    """
    console.print(
        f"Central DP of one record, all silos together: {_cell(values.central)} "
        "(a record lies in one silo: the largest epsilon and delta)",
        highlight=False,
    )
    silos = sorted(values.silos, key=_weakest_first)
    groups = max((silo.group for silo in silos), key=len)
    heads = [*(f"{entry.records} records" for entry in groups), "whole silo", "to set for user level"]
    rows = {silo.name: _cells(silo, len(groups)) for silo in silos[:MOST_ROWS]}
    rules = ", ".join(sorted({silo.group_rule for silo in silos}))
    rest = f"; and {len(silos) - MOST_ROWS} more silos (--json)" if len(silos) > MOST_ROWS else ""
    _print_fitting(console, heads, rows, f"groups by {rules}{rest}")


def _cells(silo: SiloConversions, groups: int) -> list[str]:
    cells = [_cell(entry.guarantee) for entry in silo.group]
    recipe = silo.record_level_for_user_level_budget
    return [*cells, *[""] * (groups - len(cells)), _cell(silo.user_level), _to_set(recipe)]


def _print_fitting(
    console: Console, heads: Sequence[str], rows: Mapping[str, Sequence[str]], caption: str
) -> None:
    """A table, or on a terminal too narrow for it a line a number: half a number is a wrong one."""
    table = Table(title="(epsilon, delta) in other units", box=SIMPLE_HEAD, caption=caption)
    table.add_column("silo")
    for head in heads:
        table.add_column(head.replace("for user", "for\nuser"), justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    unbounded = console.options.update(max_width=_WIDE)
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
        return
    console.print(f"(epsilon, delta) in other units ({caption}):", markup=False)
    for name, cells in rows.items():
        say(console, f"{name}:")
        for head, cell in zip(heads, cells, strict=True):
            if cell:
                say(console, f"  {head}: {cell}")


def _weakest_first(silo: SiloConversions) -> float:
    first = silo.group[0].guarantee if silo.group else silo.user_level
    return -first.epsilon if first else float("-inf")


def _cell(guarantee: Guarantee | None) -> str:
    return f"({shown_up(guarantee.epsilon)}, {shown_up(guarantee.delta, 2)})" if guarantee else "no guarantee"


def _to_set(budget: Guarantee | None) -> str:
    """A budget rounded down, so that it may be set to the number shown."""
    if budget is None:
        return "only up to epsilon 1"
    return f"({shown_down(budget.epsilon)}, {shown_down(budget.delta, 2)})"
