"""`fedsim list`: the scenarios that come with fedsim, and what a scenario can name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import metadata

from rich.console import Console
from rich.table import Table

from fedsim.algorithms.registry import algorithms
from fedsim.common.choice import kinds
from fedsim.data.registry import PARTITIONS, data_sets
from fedsim.mechanisms.registry import MECHANISMS
from fedsim.problems.composite import Constraint
from fedsim.problems.network_models import Model
from fedsim.problems.registry import problems
from fedsim.protocol.batch import Batch
from fedsim.report.trackers import GROUP
from fedsim.scenario.catalogue import descriptions
from fedsim.scenario.participation import Participation


def show() -> None:
    """Print every kind of part with its one-line description."""
    parts = {
        "scenarios (by name, in place of a file)": descriptions(),
        "algorithms": _lines(algorithms()),
        "problems": _lines(problems()),
        "networks (problem.model)": _lines(kinds(Model)),
        "constraints (problem.constraint)": _lines(kinds(Constraint)),
        "data sets": _lines(data_sets()),
        "partitions": _lines(PARTITIONS),
        "samplers": _lines(kinds(Batch)),
        "mechanisms": _lines(MECHANISMS),
        "participation": _lines(kinds(Participation)),
        "trackers": _trackers(),
    }
    console = Console()
    for title, lines in parts.items():
        if not lines:  # no tracker is installed
            continue
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        table.add_column(no_wrap=True)  # a name is there to be copied
        table.add_column()
        for name, line in lines.items():
            table.add_row(name, line)
        console.print(table, "")


def _trackers() -> dict[str, str]:
    """{name: where from} of what is installed; not loaded, since a tracker may need what is not there."""
    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: f"{point.value}, of {point.dist.name}" for point in points if point.dist}


def _lines(parts: Mapping[str, object]) -> dict[str, str]:
    """{name: first line of the docstring}."""
    return {name: first_line(part) for name, part in parts.items()}


def first_line(thing: object) -> str:
    """The first line of a docstring; empty where there is none."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]
