"""A ledger that was altered, cut, damaged or put back to an earlier copy is not taken for whole."""

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.flips import flipped
from support.ledgers import answer, broadcast, copied, enrolled, hexed, open_run, sampled, state
from support.refusals import ANY, refused

from fedsim.common.chain import errors
from fedsim.common.errors import Refused
from fedsim.common.head_file import head_path
from silos.vault.book import LEDGER, read, replayed
from silos.vault.ledger_file import LedgerFile


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A ledger with every kind of entry, closed; copy it before damaging it."""
    path, _ = enrolled(tmp_path_factory.mktemp("used"))
    with LedgerFile.open(path) as file:
        first, second = open_run(file), open_run(file, 2, sampled(3))
        for round_index in range(3):
            answer(first, round_index)
        second.debit(0, bytes(32))
        second.refuse(0, "no")
        file.close_run(first.run, {"epsilon_spent": 0.5})
        answer(second, 1)
        second.debit(2, bytes(32))
    with LedgerFile.open(path) as file:
        file.run(hexed(502)).debit(2, bytes(32))
    return path


@pytest.fixture
def memory(used):
    """The same in memory, where trying is quick."""
    connection = sqlite3.connect(":memory:")
    with contextlib.closing(sqlite3.connect(used)) as source:
        source.backup(connection)
    connection.isolation_level = None
    yield connection
    connection.close()


def noticed(connection: sqlite3.Connection) -> bool:
    try:
        with errors(LEDGER, Path()):
            replayed(connection)
    except Refused:
        return True
    return False


def test_a_whole_ledger_is_read_as_it_was_written(used, memory):
    kinds = [kind for (kind,) in memory.execute("SELECT DISTINCT kind FROM entries")]
    expected = {"enrolled", "started", "admitted", "debited", "replied", "refused", "resumed", "closed"}
    assert set(kinds) == expected
    assert not noticed(memory)
    assert state(read(used)) == state(replayed(memory))


@pytest.mark.parametrize(
    ("column", "step"),
    [("kind", 1), ("hash", 1), ("payload", 7), pytest.param("payload", 1, marks=pytest.mark.slow)],
)
def test_every_changed_byte_of_an_entry_is_noticed(memory, column, step):
    rows = memory.execute(f"SELECT seq, {column} FROM entries").fetchall()
    for seq, value in rows:
        for place in range(seq % step, len(value), step):
            old = value[place : place + 1]
            new = bytes([old[0] ^ 1]) if isinstance(old, bytes) else chr(ord(old) ^ 1)
            memory.execute("BEGIN")
            changed = value[:place] + new + value[place + 1 :]
            memory.execute(f"UPDATE entries SET {column} = ? WHERE seq = ?", (changed, seq))
            assert noticed(memory), (seq, column, place)
            memory.execute("ROLLBACK")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET time = time + 1 WHERE seq = {seq}",
        "UPDATE entries SET seq = 1000000 - seq",
        "DELETE FROM entries WHERE seq = {seq}",
        "INSERT INTO entries SELECT {seq} + 1000, time, kind, payload, x'00' FROM entries WHERE seq = {seq}",
        "UPDATE runs SET offer = offer || ' '",
        "UPDATE runs SET secret = x'00'",
        "UPDATE runs SET run = 'x' || run",
        "DELETE FROM runs WHERE run = (SELECT max(run) FROM runs)",
        "UPDATE replies SET reply = memory",
        "UPDATE replies SET memory = reply",
        "UPDATE replies SET round = round + 1",
        "DELETE FROM replies WHERE run = (SELECT max(run) FROM replies)",
        "DELETE FROM entries",
    ],
)
def test_every_other_change_is_noticed(memory, change):
    (last,) = memory.execute("SELECT max(seq) FROM entries").fetchone()
    for seq in range(1, last) if "{seq}" in change else [0]:
        memory.execute("BEGIN")
        memory.execute(change.format(seq=seq))
        assert noticed(memory), seq
        memory.execute("ROLLBACK")


def test_cutting_off_what_was_replied_is_noticed_and_the_rest_by_who_has_seen_the_head(memory):
    (last,) = memory.execute("SELECT max(seq) FROM entries WHERE kind = 'replied'").fetchone()
    memory.execute("DELETE FROM entries WHERE seq >= ?", (last,))
    assert noticed(memory)


def test_a_restored_copy_does_not_know_a_later_head(tmp_path):
    path, _ = enrolled(tmp_path)
    with LedgerFile.open(path) as file:
        run = open_run(file)
        answer(run, 0)
        early = run.head_of(0)
    copy = copied(path, tmp_path / "copy")
    with LedgerFile.open(path) as file:
        answer(file.run(run.run), 1)
        late = file.run(run.run).head_of(1)
        assert file.head == late
        assert file.knows(late)
    copied(copy, tmp_path)
    with LedgerFile.open(path) as file:
        assert file.knows("")
        assert file.knows(early)
        assert not file.knows(late)
        assert not file.knows("no hexadecimal number")
    assert read(path, early).length > 0
    with refused("head", ANY, "lost entries"):
        read(path, late)


def test_a_forked_history_does_not_know_the_other_heads(tmp_path):
    """Two copies that go on in the same way: times differ, and so do heads."""
    path, _ = enrolled(tmp_path)
    copy = copied(path, tmp_path / "other")
    with LedgerFile.open(path) as one, LedgerFile.open(copy) as two:
        assert not one.knows(two.head)
        assert not two.knows(one.head)


def taken_up(path: Path, head: str) -> Any:
    """What a silo goes on with once it has opened its ledger; None where that is refused."""
    with contextlib.suppress(Refused), LedgerFile.open(path) as file:
        assert file.knows(head)
        runs = [run for run in map(file.run, file.book.runs) if run.record.last is not None]
        kept = [
            each
            for run in runs
            for each in (run.find(run.record.last, broadcast(run.record.last)), run.memory)
        ]
        told = [{name: row.tolist() for name, row in each.items()} for each in kept]
        account = file.account.charged, file.account.reserved, file.account.left
        return file.book.length, file.enrolment, file.book.runs, file.book.sessions, account, told


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_a_turned_bit_is_refused_or_changes_nothing(used, tmp_path, count):
    """In the ledger, or in its head file."""
    path = copied(used, tmp_path)
    head, seen = read(path).head, state(read(path))
    expected = taken_up(copied(used, tmp_path / "whole"), head)
    refused = 0
    for where in flipped([path, head_path(path)], count):
        with contextlib.suppress(Refused):
            assert state(read(path, head)) == seen, where
        found = taken_up(path, head)
        assert found in (None, expected), where
        refused += found is None
    assert count // 8 < refused < count
    assert state(read(path)) == seen


def test_a_file_cut_short_is_refused(used, tmp_path):
    whole = copied(used, tmp_path).read_bytes()
    LedgerFile.open(copied(used, tmp_path)).close()
    for length in [0, 1, 99, 100, 4096, 8192, len(whole) // 2, len(whole) - 4096, len(whole) - 1]:
        (tmp_path / "ledger.sqlite").write_bytes(whole[:length])
        with pytest.raises(Refused):
            LedgerFile.open(tmp_path / "ledger.sqlite")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A copy of a ledger in use, as a kill leaves it: files, and its newest head."""
    path, _ = enrolled(tmp_path_factory.mktemp("killed"))
    with LedgerFile.open(path) as file:
        run = open_run(file)
        for round_index in range(30):
            answer(run, round_index)
        return copied(path, path.parent / "copy"), file.head


def _damaged_logs(log: bytes) -> Iterator[bytes | None]:
    """500 with one bit flipped, 100 cut short, empty, and none."""
    rng = random.Random(1)
    for _ in range(500):
        place = rng.randrange(len(log))
        yield log[:place] + bytes([log[place] ^ 1 << rng.randrange(8)]) + log[place + 1 :]
    yield from (log[: rng.randrange(len(log))] for _ in range(100))
    yield from (b"", None)


def test_a_damaged_cut_or_missing_log_is_refused_or_changes_nothing(killed, tmp_path):
    """A log with a wrong checksum ends there, for SQLite: fewer entries, and not a word."""
    path, head = killed
    log, refused = path.with_name("ledger.sqlite-wal").read_bytes(), 0
    copied(path, tmp_path / "whole")
    with LedgerFile.open(tmp_path / "whole" / path.name) as whole:
        assert whole.knows(head)
    for damage in _damaged_logs(log):
        copy = copied(path, tmp_path / "copy")
        copy.with_name(f"{path.name}-shm").unlink()
        place = copy.with_name(f"{path.name}-wal")
        place.unlink() if damage is None else place.write_bytes(damage)
        for use in (lambda copy=copy: read(copy, head), lambda copy=copy: LedgerFile.open(copy)):
            try:
                found = use()
            except Refused:
                refused += 1
                continue
            if isinstance(found, LedgerFile):
                assert found.knows(head)
                found.close()
    assert refused > 1_000


@pytest.mark.parametrize("after", ["debit", "store"])
def test_a_kill_between_an_entry_and_its_note_goes_on_one_ahead(tmp_path, monkeypatch, after):
    path, _ = enrolled(tmp_path)
    with LedgerFile.open(path) as file:
        run = open_run(file)
        answer(run, 0)
        if after == "store":
            run.debit(1, bytes(32))
        noted = head_path(path).read_bytes()
        run.debit(1, bytes(32)) if after == "debit" else run.store(1, {}, {})
        head = file.head
    head_path(path).write_bytes(noted)
    for _ in range(2):  # one more entry each, and a second start finds nothing odd
        with LedgerFile.open(path) as file:
            assert file.knows(head)
    head_path(path).write_bytes(noted)  # three behind, which no kill leaves
    with pytest.raises(Refused, match="set back"):
        LedgerFile.open(path)


def test_a_ledger_without_its_head_file_is_refused(tmp_path):
    path, _ = enrolled(tmp_path)
    head_path(path).unlink()
    for use in (read, LedgerFile.open):
        with pytest.raises(Refused, match="-head is missing"):
            use(path)


def test_what_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with refused("ledger", ANY, "enrols"):
        LedgerFile.open(path)
    with refused("ledger", ANY, "enrols"):
        read(path)
    path.write_text("a" * 10_000)
    with pytest.raises(Refused):
        read(path)
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE entries (a)")
    with pytest.raises(Refused, match="no ledger"):
        LedgerFile.open(path)
    with refused("ledger", ANY, "already"):
        enrolled(tmp_path)


def test_a_ledger_and_its_companions_are_the_owners_alone(tmp_path):
    path, _ = enrolled(tmp_path)
    with LedgerFile.open(path):
        for file in tmp_path.iterdir():
            assert file.name == "identity.pub" or file.stat().st_mode & 0o077 == 0, file


def test_one_process_holds_a_ledger_and_others_read_it(tmp_path):
    path, _ = enrolled(tmp_path)
    (tmp_path / "link.sqlite").symlink_to(path)
    with LedgerFile.open(path) as file:
        open_run(file)
        for name in (path, tmp_path / "link.sqlite"):
            with pytest.raises(Refused, match="another process"):
                LedgerFile.open(name)
        assert state(read(path)) == state(file.book)
    with LedgerFile.open(path) as file:
        assert file.open_runs()
