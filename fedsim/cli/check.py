"""`fedsim check`: the shared properties on an algorithm, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.cli.app import SCENARIOS, app, plain_errors
from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from fedsim.testing.check import Checked

_STYLES = {"passed": "green", "failed": "bold red", "left out": "yellow", "not tried": "dim"}


@app.command(rich_help_panel=SCENARIOS)
def check(
    algorithm: Annotated[
        str,
        typer.Argument(
            metavar="ALGORITHM", help="A name of `fedsim list`, module:Class, file.py or file.py:Class."
        ),
    ],
    numbers: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A number of the algorithm; may be repeated."),
    ] = None,
    left_out: Annotated[
        list[str] | None,
        typer.Option(
            "--leave-out", metavar="PROPERTY=REASON", help="A property that need not hold; may be repeated."
        ),
    ] = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Run the algorithm's halves in a confined process.")
    ] = False,
) -> None:
    """Check an algorithm for what must hold of every one: its plan, its optimum, its account; exit code 1 if
    something does not."""
    with plain_errors():
        raise typer.Exit(_check(algorithm, numbers or [], left_out or [], isolated))


def _check(named: str, numbers: Sequence[str], left_out: Sequence[str], isolated: bool) -> int:
    """Print what holds of the algorithm that is named; the exit code, 1 where a property does not."""
    from fedsim.testing.check import check, examples

    console, failed = Console(), False
    values = {name: yaml.safe_load(value) for name, value in _pairs(numbers, "--set")}
    for title, example in examples(named, values, dict(_pairs(left_out, "--leave-out")), isolated).items():
        with console.status(f"Checking {title}"):
            checked = list(check(example))
        console.print(_table(title, checked))
        failed |= any(each.outcome in ("failed", "not tried") for each in checked)
    return int(failed)


def _table(title: str, checked: Sequence[Checked]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("property", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason")
    for each in checked:
        table.add_row(each.name, Text(each.outcome, _STYLES[each.outcome]), Text(each.reason))
    return table


def _pairs(given: Sequence[str], option: str) -> list[tuple[str, str]]:
    for each in given:
        if "=" not in each:
            raise InputError(option, each, "must be NAME=VALUE")
    return [(name, value) for name, _, value in (each.partition("=") for each in given)]
