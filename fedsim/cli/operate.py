"""A deployment as its operator sees and ends it: `fedsim status`, `runs`, `stop` and `down`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedsim.cli.app import DEPLOYMENT, FAILED, AsJson, app
from fedsim.cli.deploy import print_kept, print_resume, telling
from fedsim.cli.output import print_json, print_warnings, printable, say, shown, titled
from fedsim.common.errors import InputError
from fedsim.privacy.rounding import shown_down

if TYPE_CHECKING:
    from fedsim.deployment.flower.control import Control, Submitted
    from fedsim.deployment.flower.submit import Job
    from fedsim.deployment.standing import Place

Where = Annotated[
    Path, typer.Argument(metavar="FEDERATION", help="federation.yaml, or a directory of `fedsim up`.")
]
AtSuperLink = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The SuperLink; default: the federation's.")
]
_ACCOUNT = {"mu_sq": "mu^2", "epsilon": "epsilon", "delta": "delta", "distance": "distance"}


@app.command(rich_help_panel=DEPLOYMENT)
def status(
    federation: Where,
    superlink: AtSuperLink = None,
    run: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Run directory with receipts; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a deployment stands: SuperLink, newest run, silos; exit code 1 if the SuperLink does not
    answer."""
    from fedsim.deployment.standing import Place, standing

    place = Place.of(federation, superlink)
    tree = standing(place, run or [])
    away = place.address is not None and not tree["superlink"]["answers"]
    if as_json:
        print_json(tree)
    else:
        _print(place, tree)
    raise typer.Exit(FAILED if away else 0)


def _print(place: Place, tree: Mapping[str, Any]) -> None:
    console, link = Console(), tree["superlink"]
    print_warnings(console, tree["notices"])
    away = link["reason"] if place.address else "none: nothing of `fedsim up` runs there"
    say(console, f"SuperLink  {away or f'{place.address} answers'}")
    say(console, f"Run        {_newest(place, tree['runs'])}")
    if tree["runs"] and (rounds := _rounds(tree["runs"][0])):
        say(console, f"Round      {rounds}")
    table = titled(texts=["silo"], whole=["node", "last contact", "left of its lifetime, at most"])
    for name, silo in tree["silos"].items():
        node = silo["node"] or ("not let in" if link["answers"] else "not known")
        table.add_row(name, node, _minute(silo["contact"]) or "none known", _left(silo["lifetime"]))
    console.print(table)


def _newest(place: Place, runs: list[dict[str, Any]]) -> str:
    """The newest run in a line; without a SuperLink, what `fedsim up` has left of it."""
    from fedsim.report.resume import state_of

    if runs:
        first = runs[0]
        why = f": {printable(first['details'])}" if first["details"] else ""
        return f"{first['run']} {first['state']} since {_minute(first['started'])}{why}"
    if place.topology is None:
        return "none known"
    return {
        "none": "has not begun",
        "begun": "has not ended; its rounds so far are kept",
        "over": "is over without a model",
    }.get(state_of(place.topology.run), f"has ended; {shown(place.topology.run / 'report.html')}")


def _rounds(run: Mapping[str, Any]) -> str:
    return f"{run['round']} of {run['rounds']}" if run["rounds"] else ""


def _left(lifetime: Mapping[str, Any] | None) -> str:
    """The account of which the least is left."""
    if lifetime is None:
        return "not known"
    caps, charged = lifetime["caps"], lifetime["charged"]
    name = min(caps, key=lambda each: 1 - charged[each] / caps[each] if caps[each] else 1.0)
    left = max(0.0, caps[name] - charged[name])
    return f"{shown_down(left)} of {shown_down(caps[name])} {_ACCOUNT[name]}"


def _minute(time: str | None) -> str:
    return "" if time is None else f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M} UTC"


@app.command(rich_help_panel=DEPLOYMENT)
def runs(federation: Where, superlink: AtSuperLink = None, as_json: AsJson = False) -> None:
    """List the runs that a SuperLink has, newest first."""
    from fedsim.deployment.standing import Place, run_tree

    with Place.of(federation, superlink).control() as control:
        found = [run_tree(run) for run in control.runs()]
    if as_json:
        print_json({"runs": found})
        return
    table = titled(whole=["run", "state", "started"], numbers=["time", "round"])
    for run in found:
        time = timedelta(seconds=round(run["seconds"] or 0))
        table.add_row(run["run"], run["state"], _minute(run["started"]), str(time), _rounds(run))
    Console().print(table)


@app.command(rich_help_panel=DEPLOYMENT)
def stop(
    federation: Where,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Its number; default: the one.")] = None,
    superlink: AtSuperLink = None,
) -> None:
    """End a run after the round in hand, and say how to resume it; within the round where that takes longer
    than 30 s, another machine has the run, or it is one of another federation.yaml."""
    from fedsim.deployment.standing import Place
    from fedsim.report.resume import state_of

    place, console = Place.of(federation, superlink), Console()
    with place.control() as control:
        found = _chosen(control, run)
        job = place.job(found)
        _stop(control, found, job, console)
    if place.topology is not None:
        print_resume(console, place.topology)
    elif job is not None:
        print_kept(console, job, superlink if state_of(job.out) == "begun" else superlink or place.address)


def _chosen(control: Control, number: str | None) -> Submitted:
    open_runs = [run for run in control.runs() if not run.status.over]
    found = [run for run in open_runs if number in (None, str(run.number))]
    if len(found) != 1:
        there = ", ".join(str(run.number) for run in found) or "none"
        raise InputError("RUN", number, f"one run at {control.address} that has not ended; there is {there}")
    return found[0]


def _stop(control: Control, run: Submitted, job: Job | None, console: Console) -> None:
    from fedsim.deployment.flower.submit import Reader, end_round

    try:
        with telling(console) as tell, suppress(KeyboardInterrupt):
            if job is not None:
                reader = Reader(job.progress)
                reader.new()  # rounds of before
                end_round(control, run.number, job, reader, tell)
    finally:
        if job is not None and job.stop.exists():
            job.stop.unlink(missing_ok=True)
        if not (now := control.status(run.number)).over:
            control.stop(run.number)
            now = control.status(run.number)
    say(console, f"Run {run.number}: {now.word}{f': {printable(now.details)}' if now.details else ''}")


@app.command(rich_help_panel=DEPLOYMENT)
def down(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory of `fedsim up`.")],
) -> None:
    """End what runs in a directory of `fedsim up`: an `up` in another terminal, or what one left behind."""
    from fedsim.deployment.running import FILE, running
    from fedsim.deployment.topology import made

    topology, console = made(directory.absolute(), "DIR"), Console()
    there = running(topology.directory)
    count = 0 if there is None else there.end()
    (topology.directory / FILE).unlink(missing_ok=True)
    if not count:
        say(console, f"Nothing of `fedsim up` runs in {shown(directory)}/.")
        return
    say(console, f"Ended {count} processes.")
    print_resume(console, topology)
