"""`fedsim list`: what a scenario can name."""

from __future__ import annotations

import inspect
from typing import get_args

from rich.console import Console
from rich.table import Table

from fedsim.algorithms.registry import algorithms
from fedsim.data.registry import datasets, partitions
from fedsim.problems.registry import problems
from fedsim.scenario.algorithm import samplers
from fedsim.scenario.mechanism import MECHANISMS
from fedsim.scenario.model import PrivacySection


def show() -> None:
    """Print every kind of part with its one-line description."""
    assert set(MECHANISMS) == set(get_args(PrivacySection.model_fields["mechanism"].annotation))
    parts = {
        "algorithms": {name: first_line(kind) for name, kind in algorithms().items()},
        "problems": {name: first_line(kind) for name, kind in problems().items()},
        "data sets": datasets(),
        "partitions": partitions(),
        "samplers": samplers(),
        "mechanisms": {name: mechanism.line for name, mechanism in MECHANISMS.items()},
    }
    console = Console()
    for title, lines in parts.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        table.add_column(no_wrap=True)  # a name is there to be copied
        table.add_column()
        for name, line in lines.items():
            table.add_row(name, line)
        console.print(table, "")


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").splitlines()[0]
