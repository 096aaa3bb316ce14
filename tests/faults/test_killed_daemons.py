"""SIGKILL to a silo's daemon, wherever and whenever: what left was paid for, each round has one answer."""

import random
import signal
import threading
import time
from functools import partial

import pytest
from support.breaking import PLACES, kill_at
from support.daemons import LIFETIME, Silo, daemons, enrolled_silo, running_silos, short_folder
from support.one_server import OneServer, check_transcript, offer

from silos.vault.book import read

ROUNDS = 5


def check(silo: Silo, server: OneServer) -> None:
    """The whole ledger is sound, and not below what the server has."""
    found = read(silo.ledger)
    check_transcript(server.received, {run: list(record.rounds) for run, record in found.runs.items()})


def play(server: OneServer, session: int = 1) -> None:
    """A whole run; each answer is asked for a second time, as a lost one would be."""
    answers = [server.offer(offer(session=session, num_rounds=ROUNDS, epsilon=0.5))]
    answers += [server.ask(r) for r in range(ROUNDS) for _ in range(2)]
    assert [a.head for a in answers if a.kind == "refusal"] == []
    assert list(server.close().rounds) == list(range(ROUNDS))


@pytest.mark.parametrize("round_index", [0, 2, ROUNDS - 1])
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_a_boundary(place, round_index):
    with short_folder() as folder, daemons(enrolled_silo(folder), start=False) as made:
        silo = made["silo-1"].start(partial(kill_at, place, round_index))
        deaths = []

        def restart() -> None:
            deaths.append(silo.wait())
            check(silo, server)
            silo.start()

        with OneServer(silo.socket, silo.identity, restart) as server:
            play(server)
        assert deaths == [-signal.SIGKILL]
        assert silo.stop() == 0
        check(silo, server)
        cut_off = server.received[server.run, round_index][0]
        assert (len(cut_off) > 0) == (place == "mid-send")


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments(kills):
    """Run after run while somebody kills and starts the daemon: admissions and closings are hit too."""
    rng = random.Random(kills)
    with running_silos(1, lifetime={**LIFETIME, "epsilon": 20.0}) as made:
        silo, over = made["silo-1"], threading.Event()

        def answered() -> int:
            return sum(map(len, list(server.received.values())))

        def wait() -> bool:
            """For some answers, however slow the machine is, and then for a random moment."""
            goal = answered() + rng.randrange(20)
            while answered() < goal and not over.wait(0.001):
                pass
            return over.wait(rng.uniform(0, 0.05))

        def kill_and_start() -> None:
            nonlocal starts
            try:
                for _ in range(kills):
                    if wait():
                        break
                    silo.kill()
                    silo.start()
                    starts += 1
            finally:
                over.set()

        starts, runs = 0, 0
        killer = threading.Thread(target=kill_and_start)
        with OneServer(silo.socket, silo.identity, lambda: time.sleep(0.005)) as server:
            killer.start()
            try:
                while not over.is_set():
                    runs += 1
                    play(server, session=runs)
            finally:
                over.set()
                killer.join()
        assert starts == kills
        assert silo.stop() == 0
        check(silo, server)
        assert all(not run.open for run in read(silo.ledger).runs.values())
