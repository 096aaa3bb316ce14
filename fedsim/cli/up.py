"""`fedsim up`: a scenario deployed whole on this machine, for a first look at what a deployment is."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedsim.cli.app import DEPLOYMENT, FAILED, INTERRUPTED, SCENARIO, Overrides, app, plain_errors
from fedsim.cli.output import print_failure, print_run, say, shown, slug
from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from fedsim.deployment.topology import Topology
    from fedsim.scenario.model import Scenario


@app.command(rich_help_panel=DEPLOYMENT)
def up(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or --resume.")
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
        from fedsim.cli import early

        loaded = None if scenario is None else early.single(scenario, overrides or [], out)
        raise typer.Exit(run(loaded, overrides or [], out, port, resume))


def run(
    scenario: Scenario | None, overrides: Sequence[str], out: Path | None, port: int, resume: bool
) -> int:
    """Deploy a scenario here, or with `resume` go on with what did not end in `out`; the exit code."""
    from fedsim.api.run import load_run
    from fedsim.cli.deploy import telling
    from fedsim.deployment.processes import Ended
    from fedsim.deployment.up import run_all

    console = Console()
    topology = _topology(console, scenario, overrides, out, resume)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with telling(console) as tell:
            status = run_all(topology, port, resume, tell)
    except KeyboardInterrupt:
        say(console, "Interrupted; every process has ended.")
        return _kept(console, topology, INTERRUPTED)
    except Ended as error:
        print_failure(console, str(error))
        return _kept(console, topology, FAILED)
    if status.word != "completed":
        print_failure(console, f"{status.word}: {status.details}")
        return _kept(console, topology, FAILED)
    print_run(console, load_run(topology.run), topology.run)
    _print_places(console, topology)
    return 0


def _topology(
    console: Console, scenario: Scenario | None, overrides: Sequence[str], out: Path | None, resume: bool
) -> Topology:
    """Every party's folder: an earlier one's, or made now."""
    from fedsim.common.files import check_free
    from fedsim.deployment.topology import opened, prepare
    from fedsim.scenario.resolve import resolve

    if resume:
        if out is None or scenario is not None or overrides:
            raise InputError(
                "--resume", scenario and scenario.name, "--out DIR alone: what it runs is in there"
            )
        return opened(out.absolute())
    if scenario is None:
        raise InputError("SCENARIO", None, "is required")
    resolved = resolve(scenario)
    named = f"{slug(resolved.scenario.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    directory = check_free(out or Path("runs") / named)
    topology = prepare(resolved, directory)
    parties = f"a folder for the server and for each of {len(topology.silos)} silos"
    say(console, f"Made {shown(directory)}/: {parties}")
    return topology


def _kept(console: Console, topology: Topology, code: int) -> int:
    """Print how to go on; the exit code."""
    command = shlex.join(["fedsim", "up", "--resume", "--out", str(topology.directory)])
    say(console, f"What there is stays in {shown(topology.directory)}/. To go on:")
    console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
    return code


def _print_places(console: Console, topology: Topology) -> None:
    first = topology.silos[0]
    say(console, f"The page: {shown(topology.run / 'report.html')}")
    say(console, f"What only {first} would have: {shown(topology.silo(first))}/; its ledger:")
    state = shown(topology.silo(first) / "state")
    console.print(f"  fedsim ledger show {shlex.quote(str(state))}", highlight=False, soft_wrap=True)
    say(console, "The silos' test records served as the server's public ones: in this demonstration only.")
