"""`fedsim audit --daemons`: play the worst server against running daemons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import floor
from pathlib import Path

import typer
from rich.console import Console

from fedsim.api.daemon_audit import DaemonAudit, audit_daemons
from fedsim.cli.audit import BROKEN
from fedsim.cli.tables import rendered, say
from fedsim.common.errors import InputError
from fedsim.scenario.model import Scenario


def show(
    scenario: Scenario | None,
    folder: Path,
    silo: str | None,
    effort: float,
    json_wanted: bool,
) -> int:
    """Attack the daemons in a folder and print a table or JSON; the exit code.

    Raises:
        InputError, Refused: see `fedsim.api.daemon_audit`.
    """
    if scenario is None:
        raise InputError("fedsim audit", None, "name the scenario that the daemons are to be attacked by")
    found = audit_daemons(scenario, folder, silo=silo, effort=effort, progress=True)
    if json_wanted:
        typer.echo(json.dumps(found.tree, indent=2, allow_nan=False))
    else:
        _print(found)
    return BROKEN if found.broken else 0


def _print(found: DaemonAudit) -> None:
    console = Console()
    title = f"{found.tree['scenario']}: epsilon that the worst server attained of a daemon's claim"
    console.print(rendered(found.table, title), "", sep="\n")
    for line in _said(found):
        say(console, line)
    for line in found.verdict:
        say(console, line[0].upper() + line[1:], "bold red" if found.broken else "bold")


def _said(found: DaemonAudit) -> Iterator[str]:
    tree = found.tree
    share = floor(100 * tree["assumption_free"] / tree["claimed"]) if tree["claimed"] else 0
    yield (
        f"Attained: a lower bound at {tree['confidence']['bound']:.0%} confidence, by the "
        f"{tree['estimator']}; without any assumption {share} % of the claim. Noise: over what is stated."
    )
    yield f"Real noise, over sockets: {tree['runs_a_minute']:,.0f} runs a minute in each world."
    for notice in tree["notices"]:
        yield f"The daemons say: {notice}"
