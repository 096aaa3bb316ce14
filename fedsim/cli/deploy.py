"""`fedsim up`: a scenario deployed whole on this machine; `fedsim deploy`: training with real silos."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from fedsim.cli import app as shared
from fedsim.cli.app import DEPLOYMENT, DONE, FAILED, INTERRUPTED, app, ready
from fedsim.cli.output import dated, print_run, print_warnings, say, shown
from fedsim.common.errors import InputError
from fedsim.common.files import check_free

if TYPE_CHECKING:
    from fedsim.deployment.federation_file import Federation
    from fedsim.deployment.flower.control import Control, Status
    from fedsim.deployment.flower.submit import Job, Line, Tell
    from fedsim.deployment.topology import Topology
    from fedsim.scenario.model import Scenario


_POLICY = "A field of the silos' policy, as in silo.yaml, e.g. max_dimension=5000000; may be repeated."


@app.command(rich_help_panel=DEPLOYMENT)
def up(
    scenario: shared.ScenarioOrResume = None,
    overrides: shared.Overrides = None,
    out: Annotated[Path | None, typer.Option(help="A new directory; default runs/NAME-TIME.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The SuperLink's port on 127.0.0.1; default any.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in --out.")] = False,
    policy: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help=_POLICY)] = None,
) -> None:
    """Deploy a scenario whole on this machine: a server, and for each silo a daemon and a node; train, and
    leave a folder for each party."""
    import silos  # noqa: F401  (a server's installation has none, and refuses before it makes a folder)

    loaded = None if scenario is None else ready(scenario, overrides, out)
    raise typer.Exit(_run_here(loaded, overrides or [], out, port, resume, policy or []))


def _run_here(
    scenario: Scenario | None,
    overrides: Sequence[str],
    out: Path | None,
    port: int,
    resume: bool,
    policy: Sequence[str] = (),
) -> int:
    """Deploy a scenario here, or with `resume` go on with what did not end in `out`; the exit code."""
    from fedsim.api.run import load_run
    from fedsim.deployment.up import run_all
    from fedsim.report.resume import state_of

    console = Console()
    topology = _topology(console, scenario, overrides, out, resume, policy)
    run = partial(run_all, topology, port, resume)
    code, goes_on = _followed(console, run, "Interrupted; every process has ended.", topology.run)
    if code == DONE:
        print_run(console, load_run(topology.run), topology.run)
        silo = topology.silo(topology.silos[0])
        say(console, f"The page: {shown(topology.run / 'report.html')}")
        say(console, f"What only {topology.silos[0]} would have: {shown(silo)}/; its ledger:")
        say(console, f"  fedsim ledger show {shlex.quote(shown(silo / 'state'))}")
        say(
            console, "The silos' test records served as the server's public ones: in this demonstration only."
        )
        if state_of(topology.run) == "outstanding":
            say(console, "Its evaluation is outstanding.")
            print_resume(console, topology)
    elif goes_on:
        print_resume(console, topology)
    return code


def _followed(
    console: Console, run: Callable[[Tell], Status], interrupted: str, out: Path
) -> tuple[int, bool]:
    """Show how a run goes, and why it did not complete; the exit code, and whether it may go on by hand."""
    from fedsim.deployment.processes import Ended
    from fedsim.report.resume import state_of

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with telling(console) as tell:
            status = run(tell)
    except KeyboardInterrupt:
        say(console, interrupted)
        return INTERRUPTED, True
    except Ended as error:
        say(console, f"failed: {error}", style="red")
        return FAILED, state_of(out) == "begun"
    if status.word == "completed":
        return DONE, False
    word = "stopped" if status.word == "stopped" else "failed"
    say(console, f"{word}: {status.details}", style="red")
    return FAILED, status.goes_on


def _topology(
    console: Console,
    scenario: Scenario | None,
    overrides: Sequence[str],
    out: Path | None,
    resume: bool,
    policy: Sequence[str],
) -> Topology:
    """Every party's folder: an earlier one's, or made now."""
    from fedsim.cli.policy import policies_of, resolved_within
    from fedsim.deployment.topology import check, opened, prepare

    if resume:
        if out is None or scenario is not None or overrides or policy:
            hint = "--out DIR alone: what it runs is in there"
            raise InputError("--resume", scenario and scenario.name, hint)
        return opened(out.absolute())
    if scenario is None:
        raise InputError("SCENARIO", None, "is required")
    resolved = resolved_within(scenario, policy)
    directory = check_free(out or dated(resolved.scenario.name))
    check(resolved, directory)
    topology = prepare(resolved, directory, policies_of(resolved, policy))
    parties = f"a folder for the server and for each of {len(topology.silos)} silos"
    say(console, f"Made {shown(directory)}/: {parties}")
    return topology


def print_resume(console: Console, topology: Topology) -> None:
    """Print how to go on, if it can."""
    from fedsim.report.resume import state_of

    if state_of(topology.run) in ("ended", "over"):
        return
    say(console, f"What there is stays in {shown(topology.directory)}/. To go on:")
    say(console, f"  {shlex.join(['fedsim', 'up', '--resume', '--out', str(topology.directory)])}")


_KEEP = (
    "Go on by itself: wait for silos and SuperLink as long as it takes, resume what was killed or had too "
    "few answers; ends with the run, or when it is refused."
)


@app.command(rich_help_panel=DEPLOYMENT)
def deploy(
    scenario: shared.ScenarioFile,
    federation: Annotated[Path, typer.Option(help="federation.yaml: the silos' keys and addresses.")],
    out: Annotated[Path, typer.Option(help="Run directory, a new one.")],
    overrides: shared.Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run there.")] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Ask again for the evaluation of the ended run there.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Close the unfinished run there at its silos.")
    ] = False,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A running SuperLink; default: one for this run.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help=_KEEP)] = False,
) -> None:
    """Train a model with real silos, through Flower, and write the run directory."""
    asked = {"--resume": resume, "--evaluate": evaluate, "--give-up": give_up}
    given = [name for name, there in asked.items() if there]
    if len(given) > 1:
        raise InputError(given[0], True, f"one of {', '.join(given)}")
    if keep and give_up:
        raise InputError("--keep", True, "goes on with a run, which --give-up ends: one of the two")
    ready(scenario, overrides)  # a mistake should not wait for silos
    from fedsim.report.resume import state_of

    if evaluate and out.exists() and state_of(out) != "outstanding":
        raise InputError("--evaluate", str(out), "holds no run whose evaluation is outstanding")
    if give_up and out.exists() and state_of(out) not in ("begun", "over"):
        raise InputError("--give-up", str(out), "holds no run that can be given up")
    goes_on = resume or evaluate
    raise typer.Exit(_run(scenario, overrides or [], federation, out, goes_on, give_up, superlink, keep))


def _run(
    scenario: Path,
    overrides: Sequence[str],
    federation: Path,
    out: Path,
    resume: bool,
    give_up: bool,
    running: str | None,
    keep: bool,
) -> int:
    """Deploy a scenario, through the SuperLink at `running` or one of this run's own; the exit code."""
    from fedsim.api.run import load_run
    from fedsim.deployment.certs import notices
    from fedsim.deployment.federation_file import load_federation
    from fedsim.deployment.flower.submit import Job, kept, submit
    from fedsim.deployment.node_keys import node_keys
    from fedsim.report.resume import place_of, state_of

    console = Console()
    known = load_federation(federation)
    known.check_enough()
    keys = node_keys(known)
    print_warnings(console, notices(known.authority))
    there = state_of(out)  # once: another process may end it meanwhile
    resume = resume or (keep and there == "begun")
    if keep and there in ("ended", "outstanding") and not resume:
        raise InputError("--keep", str(out), "its run has ended; there is nothing to go on with")
    elsewhere = (resume or give_up) and not out.exists()
    out = out.absolute() if elsewhere or give_up else place_of(out, resume)
    out.parent.mkdir(parents=True, exist_ok=True)
    name = str(scenario.absolute()) if scenario.exists() else str(scenario)
    job = Job(name, overrides, federation.absolute(), out, "again" if keep else resume, give_up)
    patience = inf if keep else known.patience

    def run(tell: Tell) -> Status:
        def attempt(job: Job) -> Status:
            with _control(known, running, out, console) as control:
                least = 0 if give_up else known.min_silos
                return submit(control, job, keys, patience, tell, known.deadline, least)

        return kept(attempt, job, tell, keep)

    code, goes_on = _followed(console, run, "Interrupted.", out)
    if code != DONE and not give_up:
        print_kept(console, job, running, goes_on)
    if code != DONE or give_up:
        return code
    shutil.rmtree(_superlink_folder(out), ignore_errors=True)
    if out.is_dir():
        print_run(console, load_run(out), out)
        say(console, f"The page: {shown(out / 'report.html')}")
        if state_of(out) == "outstanding":
            say(console, "Its evaluation is outstanding, and can be asked for while the silos' days last:")
            say(console, f"  {shlex.join([*_command(job, running), '--evaluate'])}")
    else:
        say(console, f"Done; {out} is on the SuperLink's machine.")
    return code


@contextmanager
def _control(known: Federation, running: str | None, out: Path, console: Console) -> Iterator[Control]:
    """A line to the SuperLink, which is started if need be."""
    from fedsim.deployment.certs import covers
    from fedsim.deployment.flower.control import Control
    from fedsim.deployment.flower.superlink import CERTIFICATE, SuperLink, credentials
    from fedsim.deployment.standing import DEFAULT_SUPERLINK
    from fedsim.wire.metrics import exposed

    if running is not None:
        with Control(running, known.authority) as control:
            yield control
        return
    with exposed(known.metrics, "federation.metrics", lambda: ()):
        pass  # the run, a process that the SuperLink starts, will find the port free
    address = known.superlink or DEFAULT_SUPERLINK
    called, _, port = address.rpartition(":")
    if not called or not port.isdecimal():
        raise InputError("federation.superlink", address, "host:port")
    host = "127.0.0.1" if called in ("127.0.0.1", "localhost") else "0.0.0.0"  # where silos reach it
    papers = credentials(known.authority.parent)
    if not covers(certificate := papers / CERTIFICATE, called):
        say(console, f"{certificate} is not for {called}: nodes that go there will not trust it.")
    with SuperLink(papers, _superlink_folder(out), int(port), host) as superlink:
        say(console, f"A SuperLink runs at port {port}; its log: {shown(superlink.log)}")
        with superlink.watched() as control:
            yield control


def _superlink_folder(out: Path) -> Path:
    """The folder of its log, which is kept where the run does not end well."""
    return out.with_name(f"{out.name}.superlink")


@contextmanager
def telling(console: Console) -> Iterator[Tell]:
    """Rounds in a bar, or in lines where there is no screen; words in lines."""
    from fedsim.api.progress import display

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with display(console, 1.0, *columns) as draw:

        def tell(line: Line) -> None:
            if line.words:
                say(console, line.text)
            else:
                draw(line.rounds / line.of, line.text, line.text)

        yield tell


def print_kept(console: Console, job: Job, running: str | None, goes_on: bool = True) -> None:
    """Print the rounds kept and the command that resumes, where the run goes on."""
    from fedsim.report.resume import state_of

    state, here = state_of(job.out), running is None or job.log.exists()
    if state not in ("none", "begun"):
        return
    there = state == "begun"
    if not there and here:
        anew = "; the same command starts anew" if goes_on else ""
        say(console, f"Nothing was released by any silo{anew}.")
    if not goes_on or (not there and here):
        return
    where = "" if there else ", if there are any, on the SuperLink's machine"
    say(console, f"The rounds so far are kept{where}. To go on:")
    say(console, f"  {shlex.join([*_command(job, running), '--resume'])}")


def _command(job: Job, running: str | None) -> list[str]:
    """The job's, without what it does there."""
    command = ["fedsim", "deploy", job.scenario]
    command += [part for change in job.overrides for part in ("--set", change)]
    command += ["--federation", str(job.federation), "--out", str(job.out)]
    return command + (["--superlink", running] if running else [])
