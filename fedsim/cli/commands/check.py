"""`fedsim check`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsim.cli.app import SCENARIOS, app, plain_errors


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
) -> None:
    """Check an algorithm for what must hold of every one: its plan, its optimum, its account; exit code 1 if
    something does not."""
    with plain_errors():
        from fedsim.cli.check import run

        raise typer.Exit(run(algorithm, numbers or [], left_out or []))
