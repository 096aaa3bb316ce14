"""`fedsim check`: the shared properties on an algorithm, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.common.errors import InputError
from fedsim.testing.check import Checked, check
from fedsim.testing.find import examples

_STYLES = {"passed": "green", "failed": "bold red", "left out": "yellow", "not tried": "dim"}


def run(named: str, numbers: Sequence[str], left_out: Sequence[str]) -> int:
    """Check what is named; the exit code, 1 where a property does not hold.

    Raises:
        InputError: there is no such algorithm, or a number is missing.
    """
    console, failed = Console(), False
    values = {name: yaml.safe_load(value) for name, value in _pairs(numbers, "--set")}
    for title, example in examples(named, values, dict(_pairs(left_out, "--leave-out"))).items():
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
