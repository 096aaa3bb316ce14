"""The command line. Heavy imports wait until a command needs them: `fedsim --help` answers at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import fedsim

app = typer.Typer(
    help="Federated learning between organisations that do not trust the server: every silo's messages are "
    "differentially private, each within its own budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_SCENARIO = "Name of a scenario that comes with fedsim, or a file (YAML)"
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help=f"{_SCENARIO}.")]
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
        _fail(f"error: {error}")
    except Refused as error:
        _fail(f"refused: {error}")


def _fail(message: str) -> None:
    typer.echo(" ".join(message.split()), err=True)  # a library's message, or a value, may have lines
    raise typer.Exit(2)


@app.command()
def simulate(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME-TIME.")] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inprocess; overrides the scenario.")] = None,
    address: Annotated[
        str | None, typer.Option(help="An existing Ray cluster instead of a local one.")
    ] = None,
) -> None:
    """Train a private model across silos and write the run directory."""
    extra = [f"runtime.name={runtime}"] if runtime is not None else []
    extra += [f"runtime.address={json.dumps(address)}"] if address is not None else []
    with plain_errors():
        from fedsim.cli.simulate import run

        raise typer.Exit(run(scenario, [*(overrides or []), *extra], out))


@app.command()
def sweep(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Sweep directory; finished cells in it are used again. Default runs/NAME."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Ray workers; default one per CPU; 0: in this process.")
    ] = None,
) -> None:
    """Run a scenario's `sweep` section: all combinations, tuned, over trials; resumes where it stopped."""
    from fedsim.cli.sweep import run

    with plain_errors():
        raise typer.Exit(run(scenario, overrides or [], out, workers))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run and sweep directories.")],
    points: Annotated[
        Path | None, typer.Option(help="CSV of published points: series, epsilon, error[, low, high].")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New directory; default runs/comparison-TIME.")] = None,
) -> None:
    """Put several runs and sweeps into one table and one figure, error against epsilon."""
    from fedsim.cli.compare import run

    with plain_errors():
        run(runs, points, out)


@app.command()
def privacy(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Price every silo again by dp-accounting (slower).")
    ] = False,
    conversions: Annotated[
        bool, typer.Option("--conversions", help="What it means for groups of records, users, and centrally.")
    ] = False,
) -> None:
    """Show what the run would cost each silo and the noise it would use; reads no feature values."""
    with plain_errors():
        from fedsim.cli.privacy import show

        show(scenario, overrides or [], as_json, verify, conversions)


@app.command()
def audit(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{_SCENARIO}; or --run.")
    ] = None,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(help="A run directory: audit its scenario and put the result on its page.")
    ] = None,
    effort: Annotated[
        float,
        typer.Option(
            min=0.001, max=1000, help="Share of the default work: 0.1 for a first look, 10 for more."
        ),
    ] = 1.0,
    daemons: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Attack two real daemons of a silo over sockets in DIR; started there unless they run.",
        ),
    ] = None,
    silo: Annotated[
        str | None, typer.Option(help="With --daemons: which silo; default the one with the largest epsilon.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack a scenario's transcript and show what that attains of each silo's claim; exit code 1 if a
    claim is broken."""
    with plain_errors():
        if daemons is not None:
            from fedsim.cli.daemon_audit import show as show_daemons

            if run is not None:
                _fail("error: --daemons attacks by a scenario, --run audits a directory: give one of them")
            raise typer.Exit(show_daemons(scenario, overrides or [], daemons, silo, effort, as_json))
        if silo is not None:
            _fail("error: --silo chooses whose daemon is attacked: give --daemons DIR too")
        from fedsim.cli.audit import show

        raise typer.Exit(show(scenario, overrides or [], run, effort, as_json))


@app.command()
def silo(
    config: Annotated[Path, typer.Option(help="The silo's file (YAML).")],
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Make the silo's ledger and identity key, print the key, and end.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="After --enrol, go on as the daemon.")] = False,
    health: Annotated[
        bool,
        typer.Option("--health", help="Ask the running daemon how it is; exit code 1 if it is not well."),
    ] = False,
    insecure_simulation: Annotated[
        bool, typer.Option("--insecure-simulation", help="Allow noise from a seed: no privacy; for tests.")
    ] = False,
) -> None:
    """Run one silo's daemon: records, budget and noise stay here, and every message is debited first."""
    from silos.service import run

    with plain_errors():
        code = run(
            config,
            enrol_first=enrol,
            serve=serve,
            health=health,
            insecure_simulation=insecure_simulation,
        )
        raise typer.Exit(code)


@app.command()
def shuffler(
    config: Annotated[Path, typer.Option(help="The shuffler's file (YAML).")],
    enrol: Annotated[
        bool, typer.Option("--enrol", help="Make the shuffler's keys, print their public halves, and end.")
    ] = False,
    health: Annotated[
        bool,
        typer.Option("--health", help="Ask the running shuffler how it is; exit code 1 if it is not well."),
    ] = False,
) -> None:
    """Run a federation's shuffler: silos' sealed reports come in, and sums that it cannot read go out."""
    from server.shuffler.service import run

    with plain_errors():
        raise typer.Exit(run(config, enrolling=enrol, health=health))


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
) -> None:
    """Write the reviewer's page of a run: report.html, which needs no network, and its figures."""
    from fedsim.curves import sweep_page
    from fedsim.curves.sweep_summary import is_sweep
    from fedsim.report import page

    with plain_errors():
        written = (sweep_page if is_sweep(directory) else page).write_page(directory)
        typer.echo(f"Wrote {written} and its figures")


@app.command()
def bounds(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{_SCENARIO}; or --run.")
    ] = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory: draw the bounds over what it measured, as figures/bounds."),
    ] = None,
) -> None:
    """Show the theory's upper and lower bounds on the run's excess risk, constants set to one."""
    with plain_errors():
        from fedsim.cli.bounds import show

        show(scenario, overrides or [], as_json, run)


@app.command()
def theorems(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/thesis-audit.md.")] = False,
) -> None:
    """Show what each theorem's noise truly costs beside what the theorem claims."""
    from fedsim.cli.theorems import show

    show(as_json, markdown)


@app.command()
def up(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{_SCENARIO}; or --resume.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="A new directory; default runs/NAME-TIME.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The SuperLink's port on 127.0.0.1; default any.")
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that did not end in --out.")
    ] = False,
) -> None:
    """Deploy a scenario whole on this machine: a server, and for each silo a daemon and a node; train, and
    leave a folder for each party."""
    with plain_errors():
        from fedsim.cli.up import run

        raise typer.Exit(run(scenario, overrides or [], out, port, resume))


@app.command()
def deploy(
    scenario: ScenarioFile,
    federation: Annotated[Path, typer.Option(help="federation.yaml: the silos, as the server knows them.")],
    out: Annotated[Path, typer.Option(help="Run directory, a new one.")],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that did not end there.")
    ] = False,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A SuperLink that runs already; default: one for this run."),
    ] = None,
) -> None:
    """Train a model with real silos, through Flower, and write the run directory."""
    with plain_errors():
        from fedsim.cli.deploy import run

        raise typer.Exit(run(scenario, overrides or [], federation, out, resume, superlink))


@app.command()
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


@app.command()
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


ledger = typer.Typer(
    help="Read a silo's ledger, beside its daemon too, and its receipts.", no_args_is_help=True
)
app.add_typer(ledger, name="ledger")
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


@app.command("list")
def list_parts() -> None:
    """List what a scenario can name: algorithms, problems, data sets, partitions, samplers and so on."""
    with plain_errors():
        from fedsim.cli.parts import show

        show()


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    with plain_errors():
        from fedsim.scenario.model import Scenario

        typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))


@app.command("schema-from")
def schema_from(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
) -> None:
    """Draft a table's schema (ranges, categories) from its data; replace the ranges by documented ones."""
    from fedsim.common.errors import InputError
    from fedsim.data.draft import draft_schema

    here = {"path": "TABLE", "target": "--target"}
    with plain_errors():
        try:
            typer.echo(draft_schema(table, target), nl=False)
        except InputError as error:
            raise InputError(here.get(error.field, error.field), error.value, error.expected) from None


def main() -> Any:
    """Entry point. A silo's or a server's image holds only the commands of its side."""
    try:
        return app(prog_name="fedsim")
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] not in ("fedsim", "silos", "server"):
            raise
        typer.echo(f"error: this command needs {name}, which is not part of this installation", err=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
