"""`fedsim list` and `fedsim schema`: what a scenario can name, and what it may hold."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from importlib import metadata

import typer
from rich.console import Console
from rich.table import Table

from fedsim.cli.app import SCENARIOS, app, plain_errors


@app.command("list", rich_help_panel=SCENARIOS)
def list_parts() -> None:
    """List what a scenario can name: algorithms, problems, data sets, partitions, samplers and so on."""
    with plain_errors():
        _print_parts()


@app.command(rich_help_panel=SCENARIOS)
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    with plain_errors():
        from fedsim.scenario.model import Scenario

        typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))


def _print_parts() -> None:
    """Print every kind of part with its one-line description."""
    from fedsim.algorithms.registry import algorithms
    from fedsim.common.section import kinds
    from fedsim.data.registry import PARTITIONS, data_sets
    from fedsim.mechanisms.registry import MECHANISMS
    from fedsim.problems.composite import Constraint
    from fedsim.problems.kinds import problems
    from fedsim.problems.network_models import Model
    from fedsim.protocol.batch import Batch
    from fedsim.scenario.catalogue import descriptions
    from fedsim.scenario.participation import Participation

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
    from fedsim.report.trackers import GROUP

    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: f"{point.value}, of {point.dist.name}" for point in points if point.dist}


def _lines(parts: Mapping[str, object]) -> dict[str, str]:
    return {name: (inspect.getdoc(part) or "").partition("\n")[0] for name, part in parts.items()}
