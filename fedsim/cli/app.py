"""What every command registers with: the application, shared arguments, and how errors are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import fedsim

RUNS, PRIVACY, DEPLOYMENT, SCENARIOS = "Runs", "Privacy", "Deployment", "Scenarios and tables"
"""Parts of `fedsim --help`, in this order."""

app = typer.Typer(
    help="Federated learning between organisations that do not trust the server: every silo's messages are "
    "differentially private, each within its own budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

SCENARIO = "Name of a scenario that comes with fedsim, or a file (YAML)"
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help=f"{SCENARIO}.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a field, e.g. algorithm.step_size=0.5; may be repeated."
    ),
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedsim {fedsim.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that come before a command."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Bad input and refusals are one line on stderr and exit code 2; so are plug-ins that fail at import."""
    from fedsim.common.errors import InputError, Refused

    try:
        yield
    except InputError as error:
        fail(f"error: {error}")
    except Refused as error:
        fail(f"refused: {error}")


def fail(message: str) -> None:
    """End with one line on stderr and exit code 2."""
    typer.echo(" ".join(message.split()), err=True)  # a library's message, or a value, may have lines
    raise typer.Exit(2)
