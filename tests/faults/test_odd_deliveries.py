"""Duplicates, other orders, two clients at once, clocks that jump: as if they had not happened."""

import random
import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from support.breaking import clock_at
from support.daemons import LIFETIME, daemons, enrolled_silo, running_silos, short_folder
from support.one_server import OneServer, broadcast, check_transcript, frame, offer

from fedsim.wire.frames import decode, opened
from fedsim.wire.messages import Ask
from silos.vault.book import read

ROUNDS = 8
DAY, YEAR = 86_400.0, 365 * 86_400.0


def test_everything_twice_and_late():
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


def test_rounds_in_any_order():
    order = random.Random(1).sample(range(ROUNDS), ROUNDS)
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            assert [server.ask(r).kind for r in order] == ["reply"] * ROUNDS
            assert sorted(server.close().rounds) == list(range(ROUNDS))


def test_another_broadcast_for_a_round_is_refused():
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            assert server.ask(0).kind == "reply"
            assert "another broadcast" in server.ask(0, value=5.0).head["reason"]
            assert server.ask(0).kind == "reply"


def test_two_clients_ask_for_the_same_rounds_at_once():
    """Each round is paid for once, and every client that is answered gets the same bytes."""
    with running_silos(1) as made:
        silo = made["silo-1"]
        with OneServer(silo.socket, silo.identity) as first:
            run = first.offer(offer(num_rounds=ROUNDS)).head["run"]
        found: dict[int, list[bytes]] = {r: [] for r in range(ROUNDS)}

        def ask_all() -> None:
            with OneServer(silo.socket, silo.identity) as server:
                for r in range(ROUNDS):
                    for _ in range(2):  # a client that comes late gets the stored reply, if it is the last
                        request = frame(Ask(run=run, round=r, head=""), broadcast(r))
                        found[r].append(server.exchange(request)[8:])

        clients = [threading.Thread(target=ask_all) for _ in range(3)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        for r, answers in found.items():
            said = [decode(opened(answer)[0]) for answer in answers]
            refusals = [each.head["reason"] for each in said if each.kind == "refusal"]
            assert len(said) == 6
            assert all("only the last reply is kept" in reason for reason in refusals), r
            replies = {answer for answer, each in zip(answers, said, strict=True) if each.kind == "reply"}
            assert len(replies) == 1
        assert silo.stop() == 0
        (record,) = read(silo.ledger).runs.values()
        assert list(record.rounds) == list(range(ROUNDS))


@pytest.mark.parametrize("ahead", [(-60 * YEAR, 0.0), (3 * DAY, -60 * YEAR, 70 * YEAR)])
def test_a_clock_that_jumps(ahead):
    """Back to 1966, days ahead, and anywhere while the daemon runs: rounds go on."""
    with short_folder() as folder, daemons(enrolled_silo(folder), start=False) as made:
        silo = made["silo-1"].start()
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            assert server.ask(0).kind == "reply"
            for r in (1, 2):
                assert silo.stop() == 0
                silo.start(partial(clock_at, *ahead))
                server.close_connection()
                assert server.ask(r).kind == "reply"
            assert list(server.close().rounds) == [0, 1, 2]


def test_a_clock_that_starts_weeks_ahead_only_closes_runs():
    """A run holds its reservation for some days; it comes to no harm but that it is over."""
    with short_folder() as folder, daemons(enrolled_silo(folder), start=False) as made:
        silo = made["silo-1"].start()
        with OneServer(silo.socket, silo.identity) as server:
            server.offer(offer(num_rounds=ROUNDS))
            server.ask(0)
            assert silo.stop() == 0
            silo.start(partial(clock_at, 20 * DAY))
            server.close_connection()
            assert "closed" in server.ask(1).head["reason"]
            assert list(server.close().rounds) == [0]
            assert server.offer(offer(session=2)).kind == "admission"


def test_a_clock_that_is_put_back_does_not_bring_a_silos_life_back():
    """Seen after its last day once, it stays expired whatever the clock says later."""
    last = (datetime.now(UTC) + timedelta(days=5)).date()
    ends = {"lifetime": LIFETIME | {"expires": str(last)}}
    with short_folder() as folder, daemons(enrolled_silo(folder, **ends), start=False) as made:
        silo = made["silo-1"].start(partial(clock_at, 20 * DAY))
        with OneServer(silo.socket, silo.identity) as server:
            assert "expired" in server.offer(offer()).head["reason"]
            assert silo.stop() == 0
            silo.start()
            server.close_connection()
            assert "expired" in server.offer(offer()).head["reason"]
