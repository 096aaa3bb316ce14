"""`fedsim list` and `fedsim schema`: what a scenario can name, and what it may hold."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedsim.cli.app import DONE, FAILED, SCENARIOS, app
from fedsim.common.errors import InputError


@app.command("list", rich_help_panel=SCENARIOS)
def list_parts() -> None:
    """List what a scenario can name: algorithms, problems, data sets, partitions, samplers and so on."""
    from fedsim.algorithms.registry import algorithms
    from fedsim.common.registry import kinds
    from fedsim.data.registry import PARTITIONS, data_sets
    from fedsim.privacy.registry import MECHANISMS
    from fedsim.problems.network_models import Model
    from fedsim.problems.registry import problems
    from fedsim.problems.regularisers import Constraint
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


@app.command(rich_help_panel=SCENARIOS)
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    from fedsim.scenario.model import Scenario

    typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))


def _trackers() -> dict[str, str]:
    """{name: origin} of installed trackers; not loaded, since a tracker may lack its library."""
    from fedsim.report.trackers import GROUP

    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: f"{point.value}, of {point.dist.name}" for point in points if point.dist}


def _lines(parts: Mapping[str, object]) -> dict[str, str]:
    return {name: (inspect.getdoc(part) or "").partition("\n")[0] for name, part in parts.items()}


_NAMED = "A name of `fedsim list`, module:Class, file.py or file.py:Class."
_LEFT_OUT = "A property that need not hold; may be repeated."
_STYLES = {"passed": "green", "failed": "bold red", "left out": "yellow", "not tried": "dim"}


@app.command(rich_help_panel=SCENARIOS)
def check(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help=_NAMED)],
    numbers: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A number of the algorithm; may be repeated."),
    ] = None,
    left_out: Annotated[
        list[str] | None, typer.Option("--leave-out", metavar="PROPERTY=REASON", help=_LEFT_OUT)
    ] = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Run the algorithm in a confined process.")
    ] = False,
) -> None:
    """Check an algorithm for what must hold of every one: its plan, its optimum, its account; exit code 1 if
    something does not."""
    from fedsim.testing import check as properties

    console, code = Console(), DONE
    values = {name: yaml.safe_load(value) for name, value in _pairs(numbers or [], "--set")}
    reasons = dict(_pairs(left_out or [], "--leave-out"))
    for title, example in properties.examples(algorithm, values, reasons, isolated).items():
        with console.status(f"Checking {title}"):
            checked = list(properties.check(example))
        whole = (Column(name, no_wrap=True) for name in ("property", "outcome"))
        table = Table(*whole, "reason", title=title, title_justify="left")
        for each in checked:
            table.add_row(each.name, Text(each.outcome, _STYLES[each.outcome]), Text(each.reason))
        console.print(table)
        if any(each.outcome in ("failed", "not tried") for each in checked):
            code = FAILED
    raise typer.Exit(code)


def _pairs(given: Sequence[str], option: str) -> list[tuple[str, str]]:
    for each in given:
        if "=" not in each:
            raise InputError(option, each, "must be NAME=VALUE")
    return [(name, value) for name, _, value in (each.partition("=") for each in given)]
