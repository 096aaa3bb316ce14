"""`fedsim up`: a scenario deployed whole on this machine, for a first look at what a deployment is."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from fedsim.api.run import load_run
from fedsim.cli.deploy import FAILED, INTERRUPTED, telling
from fedsim.cli.finished import print_failure, print_run
from fedsim.cli.tables import say, shown, slug
from fedsim.common.errors import InputError
from fedsim.deployment.processes import Ended
from fedsim.deployment.topology import Topology, opened, prepare
from fedsim.deployment.up import run_all
from fedsim.results.place import check_free
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import resolve


def run(
    scenario: Scenario | None, overrides: Sequence[str], out: Path | None, port: int, resume: bool
) -> int:
    """Deploy a scenario on this machine; the exit code.

    Args:
        scenario: of one run; not with `resume`.
        overrides: that made it.
        out: a new directory, or with `resume` an earlier one.
        port: of the SuperLink; 0 for any that is free.
        resume: go on with what did not end there.

    Raises:
        InputError: the directory is wrong, or the data.
        Refused: a silo does not admit the run.
    """
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
    """How to go on."""
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
