"""A whole deployment as processes of this machine, from a scenario to a trained model.

SuperLink, for each silo a daemon and a node, and with secure aggregation a shuffler: the same commands that
organisations run apart, but all daemons are forks of one process, and all nodes of another. Silos and
shuffler are started by command line: the server's side, which this is, imports nothing of theirs. With secure
aggregation all parties enrol first, and one roster is written for them: between organisations each operator
checks its keys and terms before pinning it.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.flower import superlink
from fedsim.deployment.flower.control import Status, enroll
from fedsim.deployment.flower.submit import Job, Tell, of_words, submit
from fedsim.deployment.node_keys import node_keys
from fedsim.deployment.processes import Ended, Processes, finish
from fedsim.deployment.roster_file import keys_of
from fedsim.deployment.running import check_alone, recorded
from fedsim.deployment.topology import ROSTER, Topology, write_yaml
from fedsim.report.resume import state_of
from fedsim.scenario.load import load
from fedsim.secagg.roster import parse_roster
from fedsim.wire.dial import LOOPBACK, listens

START_SECONDS = 300.0  # until all silos must listen, on a slow machine


def run_all(topology: Topology, port: int, resume: bool, tell: Tell) -> Status:
    """Start everything, train, and stop everything, however it ends; how the run ended.

    Args:
        port: of the SuperLink on 127.0.0.1; 0 for any.
        resume: whether to go on with the run that did not end there, if it began.

    Raises:
        Ended: a process ended before its time; says which, and the end of its log.
        InputError: all of it runs already, or the port is another program's.
        Refused: silos do not come.
        KeyboardInterrupt: the run can be resumed.
    """
    check_alone(topology.directory)
    port = port or _free_port()
    superlink.check_port(LOOPBACK, port)
    federation = load_federation(topology.federation)
    resume = resume and state_of(topology.run) in ("begun", "outstanding")
    keys = node_keys(federation)
    if topology.sums:
        tell(of_words(f"enrolling the shuffler and {len(topology.silos)} silos, for their roster"))
        enrol_and_pin(topology)
    processes, address = Processes(), f"{LOOPBACK}:{port}"
    with recorded(topology.directory, processes.mark, address), processes:
        papers = superlink.credentials(topology.server)
        server = superlink.start(processes, papers, topology.server, LOOPBACK, port)

        def check() -> None:
            processes.check()
            superlink.check_helpers(server)

        if topology.sums:
            processes.start("the shuffler", topology.shuffler_command, topology.shuffler / "shuffler.log")
        _start_daemons(processes, topology, tell)
        with superlink.Watched(address, papers / superlink.ROOT, check) as control:
            _wait(control.answers, processes, "the SuperLink")
            enroll(control, keys)
            _start_nodes(processes, topology, address)
            if topology.sums:
                _wait(partial(listens, topology.shuffler_socket, 1), processes, "the shuffler")
            job = Job(str(topology.scenario), (), topology.federation, topology.run, resume)
            return submit(control, job, keys, START_SECONDS, tell)


def _start_daemons(processes: Processes, topology: Topology, tell: Tell) -> None:
    """A silo that has no ledger yet is enrolled first."""
    new = _not_enrolled(topology)
    tell(of_words(f"starting {len(topology.silos)} silos, a daemon and a node each; {len(new)} enrol first"))
    enrols = ["--enrol", "--serve"]
    given = {name: [*_daemon(topology, name), *(enrols if name in new else [])] for name in topology.silos}
    _start(processes, topology, "daemon", "silos.__main__,silos.front.service,silos.front.enrolment", given)


def _start_nodes(processes: Processes, topology: Topology, address: str) -> None:
    """The other half of each silo; there when all daemons listen."""
    given = {
        name: [
            *("--superlink", address, "--socket", str(topology.socket(name))),
            *("--root-certificates", str(topology.silo(name) / "ca.crt")),
            *("--key", str(topology.silo(name) / "node.key")),
        ]
        for name in topology.silos
    }
    _start(processes, topology, "node", "silos.shim.__main__", given)
    for name in topology.silos:
        _wait(partial(listens, topology.socket(name), 1), processes, f"the daemon of {name}")


def _start(
    processes: Processes, topology: Topology, what: str, modules: str, given: dict[str, list[str]]
) -> None:
    logs = {name: str(topology.silo(name) / f"{what}.log") for name in given}
    each = [json.dumps([f"the {what} of {name}", logs[name], words]) for name, words in given.items()]
    command = [sys.executable, "-m", "fedsim.deployment.forked", modules, *each]
    processes.start(f"the {what}s", command, topology.directory / f"{what}s.log")


def _not_enrolled(topology: Topology) -> list[str]:
    ledgers = {name: topology.silo(name) / "state" / "ledger.sqlite" for name in topology.silos}
    return [name for name, ledger in ledgers.items() if not ledger.exists()]


def _daemon(topology: Topology, name: str) -> list[str]:
    return ["--config", str(topology.config(name))]


def _wait(there: Callable[[], bool], processes: Processes, name: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not there():
        processes.check()
        if time.monotonic() > until:
            raise Ended(f"{name}: not there after {START_SECONDS:.0f} s")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as any_port:
        return int(any_port.getsockname()[1])


def enrol_and_pin(topology: Topology) -> None:
    """Enrol the parties that are not enrolled yet, and write the roster into every party's folder. Ended if a
    party could not enrol; with the end of its log.
    """
    enrolments = {}
    for name in _not_enrolled(topology):
        command = [sys.executable, "-m", "silos", *_daemon(topology, name), "--enrol"]
        enrolments[f"the enrolment of {name}"] = command, topology.silo(name) / "daemon.log"
    if not (topology.shuffler / "state" / "released.sqlite").exists():
        command = [*topology.shuffler_command, "--enrol"]
        enrolments["the enrolment of the shuffler"] = command, topology.shuffler / "shuffler.log"
    finish(enrolments)
    if (topology.server / ROSTER).exists():
        return
    scenario = load(topology.scenario, ())
    privacy = scenario.privacy
    tree = {
        "federation": scenario.name,
        **keys_of(load_federation(topology.federation), topology.shuffler / "state"),
        "min_silos": privacy.min_silos,
        "honest_fraction": privacy.honest_fraction or 1.0,
        "noise_by": privacy.noise_by,
    }
    parse_roster(tree)
    # the server's copy is written last: where it is, all are
    for folder in (topology.shuffler, *map(topology.silo, topology.silos), topology.server):
        write_yaml(folder / ROSTER, tree)
