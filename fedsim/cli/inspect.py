"""`fedsim inspect`: a table at a glance."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedsim.cli.app import SCENARIOS, AsJson, app, spoken
from fedsim.cli.output import titled
from fedsim.cli.reading import SPOKEN, GivenReading, Tables, with_reading

if TYPE_CHECKING:
    from fedsim.data.inspection import Column, Inspection, NamedSilo

_SHOWN = 3
_MOST_CLASSES = 4


@app.command(rich_help_panel=SCENARIOS)
@with_reading
def inspect(
    tables: Tables,
    target: Annotated[str | None, typer.Option(help="Column to predict: shows its balance.")] = None,
    silo: Annotated[str | None, typer.Option(help="Column that names the silo: shows their sizes.")] = None,
    *,
    reading: GivenReading,
    as_json: AsJson = False,
) -> None:
    """Show what a table holds: columns, missing values, ranges, the target's balance, the silos' sizes.

    It reads the records: run it where they may be read. What it prints is not private.
    """
    from fedsim.data import inspection

    with spoken(SPOKEN):
        found = inspection.inspect(tables, target, silo, reading)
    if as_json:
        typer.echo(json.dumps(asdict(found), ensure_ascii=False, indent=2))
    else:
        _print(found)


def _print(found: Inspection) -> None:
    console = Console()
    typer.echo(found.not_private)
    typer.echo(f"{', '.join(found.tables)}: {found.records:,} records, {len(found.columns)} columns\n")
    table = _table("Columns", "column", "kind", "missing", "values")
    for column in found.columns:
        missing = f"{column.missing:,} ({column.missing / found.records:.0%})" if column.missing else ""
        table.add_row(escape(column.name), column.kind, missing, escape(_values(column)))
    console.print(table, highlight=False)
    for column in found.columns:
        if column.remark:
            typer.echo(f"{column.name!r} is no feature as it is: {column.remark}")
    if (target := found.target) is not None:
        without = f": {target.missing:,} records have none" if target.missing else ""
        typer.echo(f"\nTarget {target.column!r}{without}")
        total = sum((target.classes or {}).values())
        for name, count in (target.classes or {}).items():
            typer.echo(f"  {name}: {count:,} ({count / total:.1%})")
        if target.quantiles is not None:
            quantiles = ", ".join(f"{name} {value:g}" for name, value in target.quantiles.items())
            typer.echo(f"  mean {target.mean:g}; {quantiles}")
    if (silos := found.silos) is not None:
        typer.echo("")
        table = _table(f"{len(silos.sizes)} silos by {silos.column}", "silo", "records", "target")
        for silo in silos.sizes:
            table.add_row(escape(silo.name), f"{silo.records:,}", escape(_balance(silo)))
        console.print(table, highlight=False)
        if silos.without:
            where = "the partition's `without_silo` says where they go, and without it they are an error"
            typer.echo(f"{silos.without:,} records name no silo: {where}")


def _table(title: str, *columns: str) -> Table:
    table = titled(escape(title))
    for column in columns:
        numbers = column in ("missing", "records")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=numbers)
    return table


def _values(column: Column) -> str:
    if column.lower is not None and column.upper is not None:
        return f"{column.lower:.8g} to {column.upper:.8g}"
    if not column.values:
        return f"{column.distinct:,} different" if column.distinct else ""
    shown = [f"{name} {count:,}" for name, count in list(column.values.items())[:_SHOWN]]
    more = column.distinct - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def _balance(silo: NamedSilo) -> str:
    if silo.mean is not None:
        return f"mean {silo.mean:g}"
    classes = silo.classes or {}
    total = max(sum(classes.values()), 1)
    shown = [f"{name} {count / total:.0%}" for name, count in list(classes.items())[:_MOST_CLASSES]]
    return ", ".join(shown) + (", ..." if len(classes) > len(shown) else "")
