"""`fedsim certs`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, app, plain_errors


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
        from fedsim.cli.certs import run

        run(directory, silo, host or [], days)
