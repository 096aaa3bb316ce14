"""Duplicates, other orders, two clients at once, clocks that jump: as if they had not happened."""

from __future__ import annotations

import itertools
import random
import threading
from functools import partial

import pytest
from support.breaking import clock_at
from support.daemons import daemons, enrolled_silo, running_silos, short_folder
from support.one_server import OneServer, broadcast, check_transcript, frame, offer

from fedsim.protocol.messages import Ask
from fedsim.protocol.wire import decode, opened
from silos.book import read

ROUNDS = 8


def test_everything_twice_and_late() -> None:
    """A network that repeats and delays: answers are stored ones, or refusals that cost nothing."""
    rng = random.Random(0)
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as server:
            first = server.offer(offer(num_rounds=ROUNDS))
            for r in range(ROUNDS):
                for earlier in rng.sample(range(r), min(r, 3)):
                    assert server.ask(earlier).kind == ("reply" if earlier == r - 1 else "refusal")
                assert server.ask(r).kind == "reply"
                assert server.ask(r).kind == "reply"
                assert server.offer(offer(num_rounds=ROUNDS)).head == first.head
            closed = server.close()
            assert server.close() == closed
            assert list(closed.rounds) == list(range(ROUNDS))
            assert server.offer(offer(num_rounds=ROUNDS)).head == first.head
        assert silo.stop() == 0
        runs = read(silo.ledger).runs
        check_transcript(server.received, {run: list(record.rounds) for run, record in runs.items()})
        assert len(runs) == 1


def test_rounds_in_any_order() -> None:
    order = random.Random(1).sample(range(ROUNDS), ROUNDS)
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            assert [server.ask(r).kind for r in order] == ["reply"] * ROUNDS
            assert sorted(server.close().rounds) == list(range(ROUNDS))


def test_another_broadcast_for_a_round_is_refused() -> None:
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            assert server.ask(0).kind == "reply"
            assert "another broadcast" in server.ask(0, value=5.0).head["reason"]
            assert server.ask(0).kind == "reply"


def test_two_clients_ask_for_the_same_rounds_at_once() -> None:
    """Each round is paid for once, and whoever is answered is answered with the same bytes."""
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as first:
            run = first.offer(offer(num_rounds=ROUNDS)).head["run"]
        found: dict[int, set[bytes]] = {r: set() for r in range(ROUNDS)}
        barrier = threading.Barrier(3)

        def ask_all() -> None:
            with OneServer(silo.socket, silo.identity) as server:
                for r in range(ROUNDS):
                    barrier.wait(60)
                    request = frame(Ask(run=run, round=r, head=""), broadcast(r))
                    answer = server.exchange(request)[8:]
                    assert decode(opened(answer)[0]).kind == "reply"
                    found[r].add(answer)

        clients = [threading.Thread(target=ask_all) for _ in range(3)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert [len(answers) for answers in found.values()] == [1] * ROUNDS
        assert len(set(itertools.chain(*found.values()))) == ROUNDS


@pytest.mark.parametrize("times", [(0.0,), (4e9, 1.0, 2e9), (1.8e9, 1.8e9 - 86_400 * 400)])
def test_a_clock_that_jumps(times: tuple[float, ...]) -> None:
    """Within a day's life left, at the epoch, in a century: rounds go on, and after a restart too."""
    with short_folder() as folder, daemons(enrolled_silo(folder), start=False) as made:
        silo = made["silo-1"].start()
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            assert server.ask(0).kind == "reply"
            for r in range(1, ROUNDS):
                assert silo.stop() == 0
                silo.start(partial(clock_at, *times))
                server.close_connection()
                assert server.ask(r).kind == "reply", r
                if r == 2:
                    break
        assert silo.stop() == 0
        (record,) = read(silo.ledger).runs.values()
        assert list(record.rounds) == [0, 1, 2]


def test_a_clock_that_is_put_back_does_not_bring_a_silos_life_back() -> None:
    """It is enrolled until 2099; seen at 2100 once, it stays expired whatever the clock says later."""
    with short_folder() as folder, daemons(enrolled_silo(folder), start=False) as made:
        silo = made["silo-1"].start(partial(clock_at, 4.2e9))
        with OneServer(silo.socket, silo.identity) as server:
            assert "expired" in server.offer(offer()).head["reason"]
            assert silo.stop() == 0
            silo.start()
            server.close_connection()
            assert "expired" in server.offer(offer()).head["reason"]
