"""`fedsim certs`: a deployment's keys; `fedsim node`, `silo` and `shuffler`: the daemons of its parties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.app import DEPLOYMENT, DONE, FAILED, app
from fedsim.common.errors import InputError
from fedsim.common.files import writing
from fedsim.common.plugins import load_none


@app.command(rich_help_panel=DEPLOYMENT)
def certs(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to write to; existing files are kept.")
    ],
    silo: Annotated[list[str] | None, typer.Option(help="A silo's name; may be repeated.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address under which silos reach the server; repeatable.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=825, help="Days that the server's certificate is valid.")
    ] = 397,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the server's certificate: same key, old and new hosts.")
    ] = False,
) -> None:
    """Make a deployment's authority, certificates and node keys, and say which file belongs to whom."""
    from fedsim.deployment.certs import make

    with writing(directory, "DIR"):
        made = make(directory, silo or [], host or [], days, renew)
    if renew:
        typer.echo(f"{directory / 'server' / 'server.crt'} is valid for {days} days from now.")
    elif not made:
        typer.echo("All of it is there already; nothing was changed.")
    for file in made:
        secret = "  secret" if file.stat().st_mode & 0o044 == 0 else ""
        typer.echo(f"{file.relative_to(directory)}{secret}")
    if made:
        readme = directory / "README"
        typer.echo(f"\n{readme} says who gets what: a folder for each party; `authority` stays with you.")


@app.command(rich_help_panel=DEPLOYMENT)
def node(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The federation's SuperLink.")],
    root_certificates: Annotated[Path, typer.Option(help="CA certificate of the SuperLink.")],
    key: Annotated[Path, typer.Option(help="This node's private key.")],
    socket: Annotated[Path | None, typer.Option(help="The silo's daemon's socket.")] = None,
    port: Annotated[int | None, typer.Option(help="The daemon's port on 127.0.0.1; with --token.")] = None,
    token: Annotated[Path | None, typer.Option(help="File of the daemon's token.")] = None,
    log: Annotated[Path | None, typer.Option(help="File for its log, beside stderr.")] = None,
    metrics: Annotated[int | None, typer.Option(metavar="PORT", help="Of 127.0.0.1, for Prometheus.")] = None,
) -> None:
    """Run a silo's node: pass frames between a SuperLink and the silo's daemon; runs no other code."""
    from silos.shim.__main__ import run

    run(superlink, root_certificates, key, socket, port, token, log, metrics)


silo_app = typer.Typer(invoke_without_command=True)
app.add_typer(silo_app, name="silo", rich_help_panel=DEPLOYMENT)


@silo_app.callback()
def silo(
    context: typer.Context,
    config: Annotated[Path, typer.Option(help="The silo's file (YAML).")],
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Make the silo's ledger and identity key, print the key, and end.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --enrol: show what it would fix, and write nothing.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="After --enrol, go on as the daemon.")] = False,
    health: Annotated[
        bool, typer.Option("--health", help="Health check of the running daemon; exit code 1 if it fails.")
    ] = False,
    insecure_simulation: Annotated[
        bool, typer.Option("--insecure-simulation", help="Allow noise from a seed: no privacy; for tests.")
    ] = False,
) -> None:
    """Run one silo's daemon: records, budget and noise stay here, and every message is debited first."""
    if context.invoked_subcommand:
        context.obj = config
        return
    if health and not (enrol or dry_run or serve or insecure_simulation):
        from silos.__main__ import health as quick

        _end(quick(["--config", str(config), "--health"]))
    load_none()  # before what lists algorithms and data sets is imported
    from silos.front.config import load_config

    load_config(config)  # before torch is loaded
    from silos.front.service import run

    options = {"enrol_first": enrol, "serve": serve, "health": health, "dry_run": dry_run}
    raise typer.Exit(run(config, insecure_simulation=insecure_simulation, **options))


def _end(code: int | None) -> None:
    """End where a quick health check has an answer."""
    if code is not None:
        raise typer.Exit(code)


@silo_app.command("model")
def silo_model(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a deployed run of this silo.")],
    out: Annotated[Path, typer.Option(help="New directory, for `fedsim predict`.")],
) -> None:
    """Write the silo's own model of a run with own models; it never leaves by itself."""
    load_none()
    from silos.front.config import load_config
    from silos.front.own_model import write_own_model

    write_own_model(load_config(context.obj), run, out)
    typer.echo(f"Wrote {out}/")


@silo_app.command("fit")
def silo_fit(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Copy of a deployed run's directory.")],
) -> None:
    """Make a model of a run's and the silo's own training records, which stays in the silo's state."""
    load_none()
    from silos.front.at_home import MARK, fit_at_home
    from silos.front.config import load_config

    found, took_part, place = fit_at_home(load_config(context.obj), run)
    corrected = "this silo's records were taken out of it" if took_part else "this silo took no part in it"
    typer.echo(f"Mean loss on records that a model has not seen; of the federation's, {corrected}:")
    for part in found.parts:
        typer.echo(f"{part.kind:10}  {part.loss:.4f} +- {part.error:.4f}  weight {part.weight:.2f}")
    typer.echo(f"Wrote {place}/ for `fedsim predict --nonprivate`; {MARK}.")


@silo_app.command("close")
def silo_close(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="First digits of the id of an open run.")],
) -> None:
    """Close a run that will not go on, by the running daemon: what it has not used is given back."""
    load_none()
    from silos.front.closing import close_run
    from silos.front.config import load_config

    closed = close_run(load_config(context.obj), run)
    rounds = f"{len(closed.rounds)} of {len(closed.price.rounds)} rounds"
    typer.echo(f"Closed run {closed.run[:16]}: {rounds} were paid for, and no other will be.")


@app.command(rich_help_panel=DEPLOYMENT)
def shuffler(
    config: Annotated[Path, typer.Option(help="The shuffler's file (YAML).")],
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Make the shuffler's keys, print their public halves, and end.")
    ] = False,
    health: Annotated[
        bool, typer.Option("--health", help="Health check of the running shuffler; exit code 1 if it fails.")
    ] = False,
) -> None:
    """Run a federation's shuffler: silos' sealed reports come in, and sums that it cannot read go out."""
    if health and not enrol:
        from shuffler.__main__ import health as quick

        _end(quick(["--config", str(config), "--health"]))
    from shuffler.service import run

    raise typer.Exit(run(config, enrolling=enrol, health=health))


@app.command(rich_help_panel=DEPLOYMENT)
def preflight(
    config: Annotated[Path | None, typer.Option(help="The silo's file (YAML); as the daemon's user.")] = None,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The SuperLink; as the node's user.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="With --superlink: its CA certificate.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="With --superlink: the node's private key.")] = None,
) -> None:
    """Check a silo's machine: files, owners, disk, last day; or with --superlink network, dates and clock."""
    from silos.front.preflight import of_daemon, of_node

    if (config is None) == (superlink is None):
        raise InputError("--config", config and str(config), "give it, or --superlink, one of the two")
    failed = 0
    if config is not None:
        checks = of_daemon(config)
    elif superlink is None or root_certificates is None or key is None:
        raise InputError("--superlink", superlink, "goes with --root-certificates and --key")
    else:
        checks = of_node(superlink, root_certificates, key)
    for check in checks:
        typer.echo(str(check))
        failed += not check.good
    typer.echo(f"{failed} failed: see above." if failed else "All is as it must be.")
    raise typer.Exit(FAILED if failed else DONE)
