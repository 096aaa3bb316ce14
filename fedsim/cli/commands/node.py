"""`fedsim node`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, app, plain_errors


@app.command(rich_help_panel=DEPLOYMENT)
def node(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The federation's SuperLink.")],
    root_certificates: Annotated[Path, typer.Option(help="Whom the SuperLink's certificate is signed by.")],
    key: Annotated[Path, typer.Option(help="This node's private key.")],
    socket: Annotated[Path | None, typer.Option(help="The silo's daemon's socket.")] = None,
    port: Annotated[int | None, typer.Option(help="The daemon's port on 127.0.0.1; with --token.")] = None,
    token: Annotated[Path | None, typer.Option(help="File of the daemon's token.")] = None,
) -> None:
    """Be a silo's node: carry frames between a SuperLink and the silo's daemon; runs no code of others."""
    with plain_errors():
        from silos.shim import run

        run(superlink, root_certificates, key, socket, port, token)
