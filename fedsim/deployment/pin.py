"""One machine's federation of sums over silos: its parties enrol, and then one roster is everybody's.

Between organisations each operator checks the roster's keys and terms before pinning it; here nobody has to
be convinced.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from fedsim.common.files import whole_file
from fedsim.deployment.processes import finish
from fedsim.deployment.topology import ROSTER, Topology
from fedsim.scenario.load import load
from fedsim.secagg.envelopes import PUBLIC_FILE
from fedsim.secagg.roster import parse_roster


def enrol_and_pin(topology: Topology) -> None:
    """Enrol whoever is not, and write the roster into every party's folder, if it is not there.

    Raises:
        Ended: a party could not enrol; with the end of its log.
    """
    enrolments = {
        f"the enrolment of {name}": (
            [sys.executable, "-m", "silos", "--config", str(topology.config(name)), "--enrol"],
            topology.silo(name) / "daemon.log",
        )
        for name in topology.silos
        if not topology.ledger(name).exists()
    }
    if not (topology.shuffler / "state" / "released.sqlite").exists():
        command = [*topology.shuffler_command, "--enrol"]
        enrolments["the enrolment of the shuffler"] = command, topology.shuffler / "shuffler.log"
    finish(enrolments)
    if not (topology.server / ROSTER).exists():
        _write(topology)


def _write(topology: Topology) -> None:
    """The server's copy is written last: where it is, all are."""
    scenario = load(topology.scenario, ())
    state, privacy = topology.shuffler / "state", scenario.privacy
    tree = {
        "federation": scenario.name,
        "silos": {name: _public(topology.silo(name) / "state" / "identity.pub") for name in topology.silos},
        "server": _public(topology.server / PUBLIC_FILE),
        "shuffler": {
            "key": _public(state / PUBLIC_FILE),
            "identity": _public(state / "identity.pub"),
        },
        "min_silos": privacy.min_silos,
        "honest_fraction": privacy.honest_fraction or 1.0,
        "noise_by": privacy.noise_by,
    }
    parse_roster(tree)
    for folder in (topology.shuffler, *map(topology.silo, topology.silos), topology.server):
        with whole_file(folder / ROSTER) as draft:
            draft.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


def _public(file: Path) -> str:
    return file.read_text("ascii").strip()
