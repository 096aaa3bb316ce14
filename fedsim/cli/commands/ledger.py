"""`fedsim ledger`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, app, plain_errors

ledger = typer.Typer(
    help="Read a silo's ledger, beside its daemon too, and its receipts.", no_args_is_help=True
)
app.add_typer(ledger, name="ledger", rich_help_panel=DEPLOYMENT)
State = Annotated[Path, typer.Argument(metavar="STATE", help="A silo's state folder, or its ledger's file.")]


@ledger.command("show")
def ledger_show(
    state: State,
    delta: Annotated[
        float | None, typer.Option(help="Delta of the run whose epsilon could still be afforded.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="A head that a server or receipt holds: it must be in the chain.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the whole ledger; show its runs, what they cost and what is left."""
    with plain_errors():
        from fedsim.cli.ledger import show

        show(state, delta, head, as_json)


@ledger.command("receipt")
def ledger_receipt(
    state: State,
    run: Annotated[str, typer.Argument(metavar="RUN", help="First digits of the id of a closed run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; default: the terminal.")] = None,
) -> None:
    """Sign a receipt of what a run cost and did, for a reviewer to check elsewhere."""
    with plain_errors():
        from fedsim.cli.ledger import receipt

        receipt(state, run, out)


@ledger.command("verify")
def ledger_verify(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt (JSON).")],
    key: Annotated[str, typer.Option(help="The silo's identity.pub, or the 64 digits in it.")],
) -> None:
    """Check that a silo signed a receipt as it stands; needs nothing but its public key."""
    with plain_errors():
        from fedsim.cli.ledger import verify

        verify(receipt, key)
