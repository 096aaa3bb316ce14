"""A server that is killed, over daemons' sockets: what it resumes to is what it would have come to."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.breaking import around
from support.channels import absent, enrolled_federation
from support.daemons import daemons, short_folder
from support.deployed import SCENARIO, resolved_of
from support.full_disk import fill

from fedsim.deployment.federation_file import Federation
from fedsim.deployment.history import Step
from fedsim.deployment.run import deploy
from fedsim.report.outcome import Outcome
from fedsim.report.record import AskedSilo
from fedsim.report.resume import state_of
from fedsim.scenario.load import parse
from fedsim.wire.service import FAILED
from server.federation import NOT_ASKED
from server.sockets import Sockets

ROUNDS = SCENARIO["algorithm"]["num_rounds"]
KILLS = [
    ("offered", 0),
    ("half asked", 0),
    ("answered", 0),
    ("torn", 0),
    ("kept", 0),
    ("half asked", 3),
    ("answered", 3),
    ("torn", 3),
    ("kept", 3),
    ("answered", ROUNDS - 1),
    ("kept", ROUNDS - 1),
    ("closed", ROUNDS - 1),
    ("writing", ROUNDS - 1),
]
FEW = [("half asked", 0), ("answered", 3), ("torn", 3), ("closed", ROUNDS - 1)]
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["silos.front.service", "support.daemons", "fedsim.deployment.run"])


@pytest.fixture
def enrolled():
    """Seeded silos in a folder of short paths."""
    with short_folder() as folder:
        yield enrolled_federation(folder, resolved_of())


def unbroken(tmp_path: Path, without: Sequence[str] = (), **more: Any) -> Outcome:
    """The run of other silos with the same records and seeds, which nothing disturbs."""
    enrolled = enrolled_federation(tmp_path / "others", resolved_of(), **more)
    with enrolled.opened(seeded=True) as channel:
        channel.faults = dict.fromkeys(without, absent)
        return deploy(parse(SCENARIO), enrolled.federation, channel, tmp_path / "unbroken")


def assert_same(found: Outcome, expected: Outcome) -> None:
    mine, theirs = found.results.trials[0], expected.results.trials[0]
    assert torch.equal(mine.models["private"], theirs.models["private"])
    assert mine.statements == theirs.statements
    assert all(said.rounds == list(range(ROUNDS)) for said in mine.statements)  # each paid for once
    assert found.deployed is not None
    assert found.deployed.without_statement == {}
    assert all(row.left_out is None for row in found.results.rows(AskedSilo))


@pytest.mark.parametrize("kills", [FEW, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_server_killed_again_and_again_resumes_to_the_same_model(enrolled, tmp_path, kills):
    out = tmp_path / "run"
    with daemons(*enrolled.files, insecure=True):
        for i, kill in enumerate(kills):
            process = _fork.Process(target=_serve, args=(enrolled.federation, out, i > 0, *kill))
            process.start()
            process.join(120)
            assert process.exitcode == -signal.SIGKILL, kill
            assert state_of(out) == "begun"
        with Sockets(enrolled.federation.addresses) as channel:
            found = deploy(parse(SCENARIO), enrolled.federation, channel, out, resume=True)
    assert_same(found, unbroken(tmp_path))
    assert state_of(out) != "begun"


@pytest.mark.slow
def test_a_killed_server_goes_on_with_the_silos_that_had_joined(tmp_path):
    """The third silo's daemon is never there: no round is answered twice, and none is unpaid."""
    out, more = tmp_path / "run", {"deadline": 2.0, "min_silos": 2}
    kills = [("offered", 0), *FEW]
    with short_folder() as folder:
        made = enrolled_federation(folder, resolved_of(), **more)
        with daemons(*made.files[:2], insecure=True):
            for i, kill in enumerate(kills):
                process = _fork.Process(target=_serve, args=(made.federation, out, i > 0, *kill))
                process.start()
                process.join(120)
                assert process.exitcode == -signal.SIGKILL, kill
            with Sockets(made.federation.addresses) as channel:
                found = deploy(parse(SCENARIO), made.federation, channel, out, resume=True)
    assert found.deployed is not None
    assert found.deployed.absent == {"silo-02": "no reply within 2 s"}
    assert_same(found, unbroken(tmp_path, ["silo-02"], **more))


def test_a_daemon_that_is_killed_and_started_again_is_waited_for(enrolled, tmp_path):
    with daemons(*enrolled.files, insecure=True) as silos, Sockets(enrolled.federation.addresses) as channel:

        def disturb(step: Step) -> None:
            if step.rounds in (1, 4):
                silo = silos[f"silo-0{step.rounds % 3}"]
                silo.kill()
                silo.start(wait=False)

        found = deploy(parse(SCENARIO), enrolled.federation, channel, tmp_path / "run", observe=disturb)
    assert_same(found, unbroken(tmp_path))


def test_a_daemon_whose_disk_was_full_is_started_again_and_the_run_goes_on(enrolled, tmp_path):
    """It ends itself, cannot start while there is no room, and then answers what it had refused, once."""
    codes: list[int] = []
    with daemons(*enrolled.files, insecure=True) as silos, Sockets(enrolled.federation.addresses) as channel:
        silo = silos["silo-01"]

        def supervise() -> None:
            codes.append(silo.wait())
            silo.start(partial(fill, silo.home / "state"), wait=False)
            codes.append(silo.wait())
            silo.start(wait=False)

        def disturb(step: Step) -> None:
            if step.rounds == 2:
                fill(silo.home / "state", silo.pid)
                supervisor.start()

        supervisor = threading.Thread(target=supervise)
        found = deploy(parse(SCENARIO), enrolled.federation, channel, tmp_path / "run", observe=disturb)
        supervisor.join()
    assert codes == [FAILED, 2]
    assert_same(found, unbroken(tmp_path))


@pytest.mark.slow  # it measures seconds; tests/server/test_remote_silos.py has the rule without them
def test_a_daemon_that_stays_away_costs_its_deadline_once_and_may_come_back(tmp_path):
    """Rounds take milliseconds here; the deadline is 4 s."""
    rounds = 12
    algorithm = SCENARIO["algorithm"] | {"num_rounds": rounds}
    at: list[float] = []
    with short_folder() as folder:
        made = enrolled_federation(folder, resolved_of(algorithm=algorithm), deadline=4.0, min_silos=2)
        with daemons(*made.files, insecure=True) as silos, Sockets(made.federation.addresses) as channel:

            def disturb(step: Step) -> None:
                at.append(time.monotonic())
                if step.rounds == 2:
                    silos["silo-01"].kill()
                elif step.rounds == 10:
                    silos["silo-01"].start()
                    time.sleep(8)  # longer than the pause is by now

            scenario = parse(SCENARIO | {"algorithm": algorithm})
            found = deploy(scenario, made.federation, channel, tmp_path / "run", observe=disturb)
    took = [b - a for a, b in pairwise(at)]
    assert took[2] > 4
    assert max(took[3:10]) < 2
    left_out = {row.round: row.left_out for row in found.results.rows(AskedSilo) if row.left_out}
    assert left_out == {2: "no reply within 4 s"} | dict.fromkeys(range(3, 10), NOT_ASKED)
    paid = {said.admitted.terms.name: said.rounds for said in found.results.trials[0].statements}
    assert paid["silo-01"] == [0, 1, 10, 11]


@pytest.mark.slow
def test_a_servers_memory_does_not_grow_with_its_rounds(tmp_path):
    sections = {
        "data": {"name": "synthetic", "rows": 120, "features": 5000},
        "algorithm": {**SCENARIO["algorithm"], "num_rounds": 200},
    }
    held: list[int] = []
    with short_folder() as folder:
        large = enrolled_federation(folder, resolved_of(**sections))
        with daemons(*large.files, insecure=True), Sockets(large.federation.addresses) as channel:
            deploy(
                parse({**SCENARIO, **sections}),
                large.federation,
                channel,
                tmp_path / "run",
                observe=lambda step: held.append(psutil.Process().memory_info().rss),
            )
    assert len(held) == 201
    assert max(held[50:]) <= 1.05 * held[50]


def _serve(federation: Federation, out: Path, resume: bool, place: str, r: int) -> None:
    _die_at(place, r)
    with Sockets(federation.addresses) as channel:
        deploy(parse(SCENARIO), federation, channel, out, resume=resume)


def _die_at(place: str, r: int) -> None:
    """Arrange that this process kills itself at a place of a round, as a loss of power would."""
    from fedsim.common.store import Store
    from fedsim.report import page
    from server.federation import RemoteSilos

    now = [-1]

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def here(*_: Any) -> None:
        if now[0] == r:
            die()

    def half_asked(sockets: Any, frames: Any, deadline: float, *_: Any) -> None:
        if now[0] == r and len(frames) > 1:  # the first silo has answered, and the others know of nothing
            sockets.exchange({min(frames): frames[min(frames)]}, deadline)
            die()

    def torn(store: Any, kind: str, payload: str) -> None:
        """Half of what a round writes is on the disk."""
        if now[0] == r:
            store.connection.execute("PRAGMA cache_size = 1")  # so that SQLite writes before the commit
            store.connection.execute("BEGIN IMMEDIATE")
            row = 99, 0, kind, payload * 5000, b""
            store.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
            die()

    def entered(_: Any, asked: int, *rest: Any) -> None:
        now[0] = asked

    around(RemoteSilos, "answer", before=entered, after=here if place == "answered" else None)
    match place:
        case "offered":
            around(RemoteSilos, "offer", after=die)
        case "half asked":
            around(Sockets, "exchange", before=half_asked)
        case "torn":
            around(Store, "append", before=torn)
        case "kept":
            around(Store, "append", after=here)
        case "closed":
            around(RemoteSilos, "close", after=die)
        case "writing":
            around(page, "write", after=die)
