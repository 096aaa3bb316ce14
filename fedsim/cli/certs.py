"""`fedsim certs`: make a deployment's keys and say who gets which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fedsim.common.errors import InputError
from fedsim.deployment.certs import make


def run(directory: Path, silos: Sequence[str], hosts: Sequence[str], days: int) -> None:
    """Make what is missing, and list it.

    Raises:
        InputError: a name cannot be one, or the folder cannot be written.
    """
    try:
        made = make(directory, silos, hosts, days)
    except OSError as error:
        raise InputError("DIR", str(directory), f"cannot be written ({error.strerror})") from None
    if not made:
        typer.echo("All of it is there already; nothing was changed.")
        return
    for file in made:
        secret = "  secret" if file.stat().st_mode & 0o044 == 0 else ""
        typer.echo(f"{file.relative_to(directory)}{secret}")
    typer.echo(
        f"\n{directory / 'README'} says who gets what: a folder for each party, `authority` for nobody."
    )
