"""`fedsim privacy`: the cost of a run before it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedsim.results.conversions import conversions
from fedsim.results.privacy_statement import (
    ADJACENCY,
    UNIT,
    accountant,
    admitted_row,
    attainable,
    claim,
    claimed,
    notices,
    parameters,
    samplers,
)
from fedsim.scenario.load import load
from fedsim.scenario.resolve import resolve
from fedsim.simulation.price import preview, second_opinions


def show(path: Path, overrides: Sequence[str], as_json: bool, verify: bool, convert: bool) -> None:
    """Print a table, or JSON, of what the plan costs every silo.

    Raises:
        InputError: bad scenario or data.
        Refused: a silo cannot afford the plan.
    """
    resolved = resolve(load(path, overrides))
    admitted = preview(resolved)
    bounds = attainable(resolved, admitted)
    silos = [
        admitted_row(silo) | claimed(resolved, silo.terms.name) | bound
        for silo, bound in zip(admitted, bounds, strict=True)
    ]
    if verify and resolved.scenario.privacy.mechanism != "none":
        for row, epsilon in zip(silos, second_opinions(resolved, admitted), strict=True):
            row["epsilon_dp_accounting"] = epsilon
    names = samplers(resolved)
    statement: dict[str, Any] = {
        "scenario": resolved.scenario.name,
        "notices": notices(resolved),
        "unit": UNIT,
        "adjacency": ADJACENCY,
        "mechanism": resolved.scenario.privacy.mechanism,
        "sampler": names,
        "accountant": accountant(resolved),
        "rounds": len(resolved.trace.plan.rounds),
        **claim(resolved),
        **parameters(resolved),
        "silos": silos,
    }
    if convert:
        statement["conversions"] = conversions(resolved, admitted)
    if as_json:
        typer.echo(json.dumps(statement, indent=2, allow_nan=False))
        return
    from rich.console import Console

    from fedsim.cli.tables import print_notices, print_parameters, silo_table

    console = Console()
    print_notices(console, notices(resolved))
    print_parameters(console, resolved)
    console.print(
        f"{statement['scenario']}: {statement['rounds']} rounds, sampler {', '.join(names)}, "
        f"accountant: {statement['accountant']}",
        highlight=False,
    )
    console.print(silo_table(silos))
    if convert:
        from fedsim.cli.conversions import show_conversions

        show_conversions(console, statement["conversions"])
