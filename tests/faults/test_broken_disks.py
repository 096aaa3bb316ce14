"""A ledger that cannot be written, was damaged or is an older one, records that changed: nothing leaves."""

import itertools
import os
import resource
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.breaking import obeying_modes
from support.daemons import Silo, daemons, enrolled_silo, short_folder
from support.full_disk import fill
from support.one_server import OneServer, check_transcript, offer

from fedsim.wire import daemon
from fedsim.wire.service import FAILED
from silos.vault.book import DAY, read
from silos.vault.journal import Clock
from silos.vault.ledger_file import LedgerFile

ROUNDS = 6


@pytest.fixture
def silo():
    """Running."""
    with short_folder() as folder, daemons(enrolled_silo(folder)) as made:
        yield made["silo-1"]


@pytest.fixture
def server(silo):
    """Its server, after an admission and two rounds."""
    with OneServer(silo.socket, silo.identity) as made:
        assert made.offer(offer(num_rounds=ROUNDS)).kind == "admission"
        assert [made.ask(r).kind for r in range(2)] == ["reply", "reply"]
        yield made


def starts_not(silo: Silo, reason: str) -> None:
    """The daemon ends by itself, with one line that says why, and never listened."""
    silo.said.unlink(missing_ok=True)
    silo.start(wait=False)
    assert silo.wait() == 2
    assert not silo.socket.exists()
    (line,) = [line for line in silo.said.read_text().splitlines() if " INFO " not in line]
    assert reason in line


def replies(server: OneServer) -> int:
    return sum(round_index >= 0 and any(found) for (_, round_index), found in server.received.items())


def test_a_full_disk(silo, server):
    """Not one byte more may be written: the round is refused for now, and the daemon ends itself with its own
    code. It does not start before there is room, and then goes on by itself.
    """
    fill(silo.home / "state", silo.pid)
    answer = server.ask(2).head
    assert "ledger cannot be written" in answer["reason"]
    assert answer["again"]
    assert silo.wait() == FAILED
    assert "ends itself, since a write failed" in silo.said.read_text()
    assert replies(server) == 2
    silo.start(partial(fill, silo.home / "state"), wait=False)
    assert silo.wait() == 2
    silo.start()  # with room again
    server.close_connection()
    assert [server.ask(r).kind for r in range(1, ROUNDS)] == ["reply"] * (ROUNDS - 1)
    assert len(server.close().rounds) == ROUNDS
    check_transcript(server.received, {run: list(r.rounds) for run, r in read(silo.ledger).runs.items()})


def test_a_disk_that_is_full_while_no_server_asks_ends_the_daemon_too(silo):
    """It writes an entry a day; here its clock goes by days, and it is tended at once."""
    assert silo.stop() == 0
    silo.start(fast_days)
    silo.until_it_says("alive")
    assert silo.stop() == 0
    silo.start(partial(fast_days, silo.home / "state"), wait=False)
    assert silo.wait() == FAILED
    silo.start()
    with OneServer(silo.socket, silo.identity) as server:
        assert server.offer(offer()).kind == "admission"
        assert server.ask(0).kind == "reply"


def fast_days(filled: Path | None = None) -> None:
    """Each look at the clock is a day later, and no hour passes between two; of an entry `alive` it is said.
    With `filled` that folder's disk is full from then on.
    """
    before, now, days = LedgerFile.note, Clock.now, itertools.count()

    def note(self, kind, *given):
        entry = before(self, kind, *given)
        os.write(2, f"{kind}\n".encode())
        if filled is not None and kind == "started":
            fill(filled)
        return entry

    LedgerFile.note = note
    Clock.now = lambda self: now(self) + next(days) * DAY
    daemon._TEND = 0.05


def test_a_disk_that_is_full_when_the_reply_is_stored(silo, server):
    """However much room there is: a round is answered as a whole, or nothing of it leaves."""
    for r in range(2, ROUNDS):
        largest = max(file.stat().st_size for file in (silo.home / "state").iterdir())
        resource.prlimit(silo.pid, resource.RLIMIT_FSIZE, (largest + 1500 * r, resource.RLIM_INFINITY))
        if server.ask(r).kind == "refusal":
            break
    else:
        pytest.fail("there was always room")
    assert silo.wait() == FAILED
    check_transcript(server.received, {run: list(r.rounds) for run, r in read(silo.ledger).runs.items()})
    silo.start()
    server.close_connection()
    assert server.ask(r).kind == "reply"


def test_a_read_only_ledger(silo, server):
    assert silo.stop() == 0
    state = silo.home / "state"
    for place, mode in [(file, 0o400) for file in state.iterdir()] + [(state, 0o500)]:
        place.chmod(mode)
    silo.start(obeying_modes, wait=False)
    assert silo.wait() == 2
    assert not silo.socket.exists()
    for place, mode in [(state, 0o700)] + [(file, 0o600) for file in state.iterdir()]:
        place.chmod(mode)
    silo.start(obeying_modes)
    server.close_connection()
    assert server.ask(2).kind == "reply"


@pytest.mark.parametrize("words", [b'"epsilon":', b'"broadcast":"', b"SQLite format 3", b'"F64"'])
def test_a_damaged_ledger(silo, server, words):
    """One digit of a price, of a broadcast's digest, of a stored reply, or the file's own first bytes."""
    assert silo.stop() == 0
    data = bytearray(silo.ledger.read_bytes())
    place = data.rindex(words) + len(words)
    data[place] = ord("1") if data[place] != ord("1") else ord("2")
    silo.ledger.write_bytes(data)
    starts_not(silo, "ledger")


def test_a_ledger_cut_short(silo, server):
    assert silo.stop() == 0
    os.truncate(silo.ledger, silo.ledger.stat().st_size // 2)
    starts_not(silo, "ledger")


def test_no_ledger(silo):
    assert silo.stop() == 0
    shutil.rmtree(silo.home / "state")
    starts_not(silo, "enrol")


def test_an_older_snapshot(silo, server):
    """Brought back after more rounds left: the server's next word names an entry that it does not have."""
    assert silo.stop() == 0
    old = silo.home / "backup"
    shutil.copytree(silo.home / "state", old)
    silo.start()
    server.close_connection()
    assert [server.ask(r).kind for r in (2, 3)] == ["reply", "reply"]
    assert silo.stop() == 0
    shutil.rmtree(silo.home / "state")
    shutil.copytree(old, silo.home / "state")
    silo.start()
    server.close_connection()
    for answer in (
        server.ask(4),
        server.ask(3, value=7.0),
        server.ask(0),
        server.hello(),
        server.offer(offer(session=2)),
    ):
        assert "older copy" in answer.head["reason"]
    assert replies(server) == 4


@pytest.mark.parametrize("what", ["one value", "one record less", "one label"])
def test_changed_records(silo, what):
    assert silo.stop() == 0
    place = silo.home / "records.npz"
    with np.load(place) as file:
        x, y = file["features"], file["target"]
    if what == "one value":
        x[5, 1] = np.nextafter(x[5, 1], 10)
    elif what == "one label":
        y[5] = 1 - y[5]
    else:
        x, y = x[:-1], y[:-1]
    np.savez(place, features=x, target=y)
    starts_not(silo, "records have changed")


def test_a_second_daemon_of_the_same_silo(silo):
    second = Silo(silo.file)
    second.said = silo.home / "second"
    second.start(wait=False)
    assert second.wait() == 2
    assert "another process holds" in second.said.read_text()
    with OneServer(silo.socket, silo.identity) as server:
        assert server.hello().kind == "greeting"
