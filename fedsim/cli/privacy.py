"""`fedsim privacy`: the cost of a run before it happens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fedsim.api.given import resolved_of
from fedsim.api.price import price_of
from fedsim.scenario.load import load


def show(path: Path, overrides: Sequence[str], as_json: bool, verify: bool, convert: bool) -> None:
    """Print a table, or JSON, of what the plan costs every silo.

    Raises:
        InputError: bad scenario or data.
        Refused: a silo cannot afford the plan.
    """
    resolved = resolved_of(load(path, overrides))
    found = price_of(resolved, verify, convert).statement
    if as_json:
        typer.echo(found.json_text())
        return
    from rich.console import Console

    from fedsim.cli.conversions import show_conversions
    from fedsim.cli.tables import print_notices, print_parameters, print_silos

    console = Console()
    print_notices(console, found.notices)
    print_parameters(console, resolved)
    console.print(
        f"{found.scenario}: {found.rounds} rounds, sampler {', '.join(found.sampler)}, "
        f"accountant: {found.accountant}",
        highlight=False,
    )
    print_silos(console, found.silos)
    if found.conversions:
        show_conversions(console, found.conversions)
