"""`fedsim certs`: make a deployment's keys and say who gets which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, app, plain_errors
from fedsim.common.errors import InputError


@app.command(rich_help_panel=DEPLOYMENT)
def certs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; what is there already is kept.")],
    silo: Annotated[list[str], typer.Option(help="A silo's name; may be repeated.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Under which silos reach the server: name or address; repeatable."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=825, help="How long the server's certificate is valid.")
    ] = 397,
) -> None:
    """Make a deployment's authority, certificates and node keys, and say which file belongs to whom."""
    with plain_errors():
        from fedsim.deployment.certs import make

        try:
            made = make(directory, silo, host or [], days)
        except OSError as error:
            raise InputError("DIR", str(directory), f"cannot be written ({error.strerror})") from None
        if not made:
            typer.echo("All of it is there already; nothing was changed.")
            return
        for file in made:
            secret = "  secret" if file.stat().st_mode & 0o044 == 0 else ""
            typer.echo(f"{file.relative_to(directory)}{secret}")
        readme = directory / "README"
        typer.echo(f"\n{readme} says who gets what: a folder for each party, `authority` for nobody.")
