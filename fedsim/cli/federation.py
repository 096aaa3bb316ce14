"""`fedsim federation`: the silos that a server knows, changed by command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedsim.cli.app import DEPLOYMENT, app
from fedsim.cli.output import titled

_HELP = "Add, remove and list the silos of a federation.yaml; comments and other lines stay."
federation = typer.Typer(help=_HELP, no_args_is_help=True)
app.add_typer(federation, name="federation", rich_help_panel=DEPLOYMENT)
File = Annotated[Path, typer.Argument(metavar="FEDERATION", help="federation.yaml.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What the federation calls the silo.")]
Node = Annotated[Path, typer.Option(help="Its node's public key, node.pub.")]
_RUNNING = "A SuperLink that keeps running, to forget the old node."
Running = Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_RUNNING)]


@federation.command("add")
def federation_add(
    file: File,
    name: Name,
    identity: Annotated[Path, typer.Option(help="Its identity's public key, identity.pub.")],
    node: Node,
) -> None:
    """Let a silo take part in the runs that begin from now on; makes the file if there is none."""
    from fedsim.deployment.federation_edit import add

    add(file, name, identity, node)
    typer.echo(f"Added {name} to {file}.")


@federation.command("rekey")
def federation_rekey(file: File, name: Name, node: Node, superlink: Running = None) -> None:
    """Let a silo's node in by another key from now on, and no more by the old one."""
    from fedsim.deployment.federation_edit import rekey

    with rekey(file, name, node) as old:
        _forget(file, superlink, old)
    typer.echo(f"{name} is let in by {node} from now on.")


@federation.command("remove")
def federation_remove(file: File, name: Name, superlink: Running = None) -> None:
    """Take a silo out of the runs that begin from now on; an open run goes on with those it began with."""
    from fedsim.deployment.federation_edit import remove

    with remove(file, name) as old:
        _forget(file, superlink, old)
    typer.echo(f"Removed {name} from {file}.")


@federation.command("roster")
def federation_roster(
    file: File,
    shuffler: Annotated[Path, typer.Option(help="Folder of the shuffler's envelopes.pub and identity.pub.")],
    socket: Annotated[Path, typer.Option(help="Where the shuffler listens on this machine.")],
    out: Annotated[Path, typer.Option(help="roster.yaml, a new file.")],
    name: Annotated[str, typer.Option(help="What the federation is called.")],
    min_silos: Annotated[int, typer.Option(help="Silos in a sum at least.")],
    honest_fraction: Annotated[float, typer.Option(help="Of those, the share that adds its noise.")],
    aggregators: Annotated[bool, typer.Option("--aggregators", help="Server and shuffler add it.")] = False,
) -> None:
    """Write the roster of secure aggregation from the federation's keys, and name it in the file."""
    from fedsim.deployment.roster_file import write_roster

    terms = {"federation": name, "min_silos": min_silos, "honest_fraction": honest_fraction}
    terms["noise_by"] = "aggregators" if aggregators else "silos"
    made = write_roster(file, shuffler, socket, out, terms)
    typer.echo(f"Wrote {out}, and named it in {file}. Its digest, for all operators to compare:")
    typer.echo(made.digest)


@federation.command("list")
def federation_list(file: File) -> None:
    """List the silos and their identities."""
    from fedsim.deployment.federation_file import load_federation

    table = titled(None, texts=["silo", "identity"])
    for name, identity in load_federation(file).identities.items():
        table.add_row(name, identity.hex())
    Console().print(table)


def _forget(file: Path, running: str | None, key: bytes) -> None:
    """Unregister a node at a SuperLink that runs; one that a run starts lets in those of the file alone."""
    from fedsim.deployment.federation_file import load_federation
    from fedsim.deployment.flower.control import Control

    if running is None:
        typer.echo("A SuperLink that keeps running lets the old node in until `flwr supernode unregister`.")
        return
    with Control(running, load_federation(file).authority) as control:
        known = control.unregister(key)
    typer.echo(f"The SuperLink {'has forgotten' if known else 'did not know'} the old node.")


@app.command(rich_help_panel=DEPLOYMENT)
def kit(
    silo: Annotated[str, typer.Argument(metavar="SILO", help="What the federation calls the silo.")],
    federation: Annotated[Path, typer.Option(help="federation.yaml, which may have no silo yet.")],
    out: Annotated[Path, typer.Option(help="A new directory.")],
) -> None:
    """Make the folder that a silo's operator needs: a draft of silo.yaml, its node's key, units, a README."""
    from fedsim.deployment.kit import write_kit

    written = write_kit(silo, federation, out)
    typer.echo(f"Wrote {out}/ ({', '.join(map(str, written))}); node.key is a secret.")
