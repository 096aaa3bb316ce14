"""`fedsim list`: what a scenario can name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import metadata
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from fedsim.algorithms.registry import algorithms
from fedsim.data.registry import PARTITIONS, data_sets
from fedsim.problems.registry import problems
from fedsim.report.trackers import GROUP
from fedsim.scenario.algorithm import samplers
from fedsim.scenario.mechanism import MECHANISMS
from fedsim.scenario.model import BallConstraint, BoxConstraint, NoConstraint, PrivacySection
from fedsim.scenario.network import ModelSection
from fedsim.scenario.participation import ParticipationConfig
from fedsim.scenario.section import Section


def show() -> None:
    """Print every kind of part with its one-line description."""
    assert set(MECHANISMS) == set(get_args(PrivacySection.model_fields["mechanism"].annotation))
    parts = {
        "algorithms": {name: first_line(kind) for name, kind in algorithms().items()},
        "problems": {name: first_line(kind) for name, kind in problems().items()},
        "networks (problem.model)": _sections(ModelSection),
        "constraints (problem.constraint)": _sections(NoConstraint | BallConstraint | BoxConstraint),
        "data sets": {name: first_line(kind) for name, kind in data_sets().items()},
        "partitions": {name: first_line(kind) for name, kind in PARTITIONS.items()},
        "samplers": samplers(),
        "mechanisms": {name: mechanism.line for name, mechanism in MECHANISMS.items()},
        "participation": _sections(ParticipationConfig),
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


def _sections(union: Any) -> dict[str, str]:
    """{name: first line} of the sections that a field chooses from by name."""
    kinds = [kind for kind in _flat(union) if isinstance(kind, type) and issubclass(kind, Section)]
    return {get_args(kind.model_fields["name"].annotation)[0]: first_line(kind) for kind in kinds}


def _flat(hint: Any) -> Iterator[Any]:
    for part in get_args(hint) or [hint]:
        yield from _flat(part) if get_args(part) else [part]


def first_line(thing: object) -> str:
    """The first line of a docstring; empty where there is none."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]
