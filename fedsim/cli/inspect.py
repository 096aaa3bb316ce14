"""`fedsim inspect`: a table at a glance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedsim.common.errors import InputError
from fedsim.data.inspection import Column, Inspection, Silo, Silos, Target, inspect
from fedsim.data.reading import Reading

_SPOKEN = {"path": "TABLE", "target": "--target", "silo": "--silo"}
_SHOWN = 3
_MOST_CLASSES = 4


@contextmanager
def spoken() -> Iterator[None]:
    """Errors name the argument or option as a person types it."""
    try:
        yield
    except InputError as error:
        first, dot, rest = error.field.partition(".")
        raise InputError(_SPOKEN.get(first, first) + dot + rest, error.value, error.expected) from None


def run(
    tables: Sequence[Path], target: str | None, silo: str | None, reading: Reading, as_json: bool
) -> None:
    """Print what a table holds.

    Raises:
        InputError: it cannot be read.
    """
    found = inspect(tables, target, silo, reading)
    if as_json:
        typer.echo(json.dumps(asdict(found), ensure_ascii=False, indent=2))
        return
    console = Console()
    typer.echo(found.not_private)
    typer.echo(f"{', '.join(found.tables)}: {found.records:,} records, {len(found.columns)} columns\n")
    _print_columns(console, found)
    if found.target is not None:
        _print_target(found.target)
    if found.silos is not None:
        _print_silos(console, found.silos)


def _print_columns(console: Console, found: Inspection) -> None:
    table = _table("Columns", "column", "kind", "missing", "values")
    for column in found.columns:
        share = f" ({column.missing / found.records:.0%})" if column.missing else ""
        missing = f"{column.missing:,}{share}" if column.missing else ""
        table.add_row(escape(column.name), column.kind, missing, escape(_values(column)))
    console.print(table, highlight=False)
    for column in found.columns:
        if column.remark:
            typer.echo(f"{column.name!r} is no feature as it is: {column.remark}")


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=escape(title), title_justify="left")
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


def _print_target(target: Target) -> None:
    without = f": {target.missing:,} records have none" if target.missing else ""
    typer.echo(f"\nTarget {target.column!r}{without}")
    total = sum((target.classes or {}).values())
    for name, count in (target.classes or {}).items():
        typer.echo(f"  {name}: {count:,} ({count / total:.1%})")
    if target.quantiles is not None:
        quantiles = ", ".join(f"{name} {value:g}" for name, value in target.quantiles.items())
        typer.echo(f"  mean {target.mean:g}; {quantiles}")


def _print_silos(console: Console, silos: Silos) -> None:
    typer.echo("")
    table = _table(f"{len(silos.sizes)} silos by {silos.column}", "silo", "records", "target")
    for silo in silos.sizes:
        table.add_row(escape(silo.name), f"{silo.records:,}", escape(_balance(silo)))
    console.print(table, highlight=False)
    if silos.without:
        where = "the partition's `without_silo` says where they go, and without it they are an error"
        typer.echo(f"{silos.without:,} records name no silo: {where}")


def _balance(silo: Silo) -> str:
    if silo.mean is not None:
        return f"mean {silo.mean:g}"
    classes = silo.classes or {}
    total = max(sum(classes.values()), 1)
    shown = [f"{name} {count / total:.0%}" for name, count in list(classes.items())[:_MOST_CLASSES]]
    return ", ".join(shown) + (", ..." if len(classes) > len(shown) else "")
