"""Sums over daemons through a shuffler, all processes of their own, each of them killed: no round is released
twice, and the model is the one of a run that nothing disturbs."""

import multiprocessing
import os
import signal
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.breaking import around
from support.daemons import daemons, short_folder
from support.deployed import simulated
from support.pooled import PooledFederation, pooled_federation, pooled_scenario
from support.shuffler_process import (
    ShufflerProcess,
    die_after_the_note,
    die_before_the_note,
    shuffler_process,
)

from fedsim.common.errors import InputError, Lost
from fedsim.deployment.history import Step
from fedsim.deployment.run import deploy
from fedsim.report.outcome import Outcome, TrialResult
from fedsim.report.record import AskedSilo
from fedsim.scenario.resolve import resolve
from fedsim.secagg.shuffling import Request
from server.sockets import Sockets
from silos.vault.book import read as read_ledger

SCENARIO = pooled_scenario()
ROUNDS = 6
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(
    ["silos.front.service", "support.daemons", "support.shuffler_process", "fedsim.deployment.run"]
)


@pytest.fixture
def made():
    """Seeded silos in a folder of short paths."""
    with short_folder() as folder:
        yield pooled_federation(folder, SCENARIO)


@pytest.fixture(autouse=True)
def _unwritten(monkeypatch):
    """The run's directory is not what these tests look at."""
    monkeypatch.setattr("fedsim.deployment.run.save", lambda outcome, place: None)


def deployed(made: PooledFederation, out: Path, resume: bool = False, observe=lambda step: None) -> Outcome:
    with Sockets(made.federation.addresses) as channel:
        return deploy(SCENARIO, made.federation, channel, out, resume, observe)


def assert_same(made: PooledFederation, found: Outcome, expected: TrialResult) -> None:
    """Model and ledgers of an undisturbed run; and every round was released once, and paid for once."""
    mine = found.results.trials[0]
    torch.testing.assert_close(
        mine.models["private"], expected.models["private"], rtol=1e-9, atol=1e-12, check_stride=False
    )
    rounds = len(expected.statements[0].rounds)
    for said, other in zip(mine.statements, expected.statements, strict=True):
        assert said.epsilon_spent == other.epsilon_spent
        assert said.rounds == list(range(rounds))
    assert found.deployed is not None
    assert found.deployed.without_statement == {}
    assert all(row.left_out is None for row in found.results.rows(AskedSilo))
    with closing(sqlite3.connect(made.folder / "shuffler" / "state" / "released.sqlite")) as notes:
        rows = notes.execute("SELECT payload ->> 'round' FROM entries WHERE kind = 'released'")
        released = Counter(index for (index,) in rows)
    assert released == Counter(range(rounds))
    for name in made.enrolled.configs:
        (run,) = read_ledger(made.folder / name / "state" / "ledger.sqlite").runs.values()
        assert sorted(run.rounds) == list(range(rounds))


def test_daemons_a_shuffler_and_a_server_make_the_simulations_model(made, tmp_path):
    with daemons(*made.enrolled.files, insecure=True), shuffler_process(made.shuffler_file):
        found = deployed(made, tmp_path / "run")
    assert_same(made, found, simulated(resolve(SCENARIO)))


@pytest.mark.slow
@pytest.mark.parametrize("before", [die_before_the_note, die_after_the_note])
def test_a_shuffler_that_is_killed_around_its_note_gives_the_same_release_or_none_when_it_is_back(
    made, tmp_path, before
):
    """Without its note it cannot know that it is no older copy: its reports are for the process that died."""

    def back_again(shuffler: ShufflerProcess) -> None:
        assert shuffler.wait() == -signal.SIGKILL
        shuffler.start()

    with (
        daemons(*made.enrolled.files, insecure=True),
        shuffler_process(made.shuffler_file, before) as shuffler,
    ):
        watcher = threading.Thread(target=back_again, args=(shuffler,))
        watcher.start()
        if before is die_before_the_note:
            with pytest.raises(Lost, match=r"round 2: .*shuffler that has ended.*begin a new run"):
                deployed(made, tmp_path / "run")
            watcher.join()
            with pytest.raises(InputError, match="is over: begin a new one"):
                deployed(made, tmp_path / "run", resume=True)
            for name in made.enrolled.configs:  # three rounds were paid for, and nothing is reserved
                (run,) = read_ledger(made.folder / name / "state" / "ledger.sqlite").runs.values()
                assert run.charged == run.used != run.price.whole
            return
        found = deployed(made, tmp_path / "run")
        watcher.join()
    assert_same(made, found, simulated(resolve(SCENARIO)))


@pytest.mark.slow
def test_daemons_and_shuffler_that_are_killed_between_rounds_are_waited_for(made, tmp_path):
    with (
        daemons(*made.enrolled.files, insecure=True) as silos,
        shuffler_process(made.shuffler_file) as shuffler,
    ):

        def disturb(step: Step) -> None:
            if step.rounds in (1, 4):
                silo = silos[f"silo-0{step.rounds % 3}"]
                silo.kill()
                silo.start(wait=False)
            if step.rounds in (2, 4):
                shuffler.kill()
                shuffler.start()

        found = deployed(made, tmp_path / "run", observe=disturb)
    assert_same(made, found, simulated(resolve(SCENARIO)))


KILLS = [("asked", 0), ("kept", 0), ("released", 0), ("kept", 2), ("released", 2), ("released", ROUNDS - 1)]


@pytest.mark.slow
def test_a_server_killed_again_and_again_resumes_to_the_same_model(made, tmp_path):
    out = tmp_path / "run"
    with daemons(*made.enrolled.files, insecure=True), shuffler_process(made.shuffler_file):
        for i, kill in enumerate(KILLS):
            process = _fork.Process(target=_dies_at, args=(made, out, i > 0, *kill))
            process.start()
            process.join(120)
            assert process.exitcode == -signal.SIGKILL, kill
        found = deployed(made, out, resume=True)
    assert_same(made, found, simulated(resolve(SCENARIO)))


@pytest.mark.slow
def test_twenty_five_silos(tmp_path):
    changes = {
        "data": {"name": "synthetic", "rows": 1000, "features": 4},
        "partition": {"name": "iid", "num_partitions": 25},
    }
    scenario = pooled_scenario(**changes)
    with short_folder() as folder:
        made = pooled_federation(folder, scenario)
        with (
            daemons(*made.enrolled.files, insecure=True),
            shuffler_process(made.shuffler_file),
            Sockets(made.federation.addresses) as channel,
        ):
            found = deploy(scenario, made.federation, channel, tmp_path / "run")
        assert_same(made, found, simulated(resolve(scenario)))


def _dies_at(made: PooledFederation, out: Path, resume: bool, place: str, r: int) -> None:
    """The server's process: it kills itself in round r, when silos have answered, when its request is on the
    disk, or when the shuffler has released the round."""
    from server.federation import RemoteSilos
    from server.secure_aggregation import KeptRequest, ShufflerClient

    owner, name = {
        "asked": (RemoteSilos, "answer"),
        "kept": (KeptRequest, "keep"),
        "released": (ShufflerClient, "released"),
    }[place]

    def die(_: object, given: object, *rest: object) -> None:
        if _round_of(given) == r:
            os.kill(os.getpid(), signal.SIGKILL)

    around(owner, name, after=die)
    deployed(made, out, resume)


def _round_of(given: object) -> object:
    request = getattr(given, "request", given)
    return request.context.round if isinstance(request, Request) else request
