"""An append-only log keeps every entry that it has acknowledged, and notices every change."""

import multiprocessing
import os
import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedsim.common.append_log import AppendLog, following
from fedsim.common.errors import Refused
from fedsim.common.head_file import Head

BODIES = [bytes([number]) * 3000 for number in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    AppendLog.create(tmp_path / "log", b"first")
    with closing(AppendLog.open(tmp_path / "log")) as log:
        for number, body in enumerate(BODIES):
            log.append(f"key {number}", body, keep=(f"name {number % 2}", body))
    return tmp_path / "log"


def whole(path: Path) -> bool:
    """Whether the log opens, and then with all its entries; False where it is refused."""
    try:
        with closing(AppendLog.open(path)) as log:
            assert [log.read(number + 2) for number in range(len(BODIES))] == BODIES
            return True
    except Refused:
        return False


def test_a_journal_that_was_left_behind_is_not_rolled_into_a_new_log(path: Path) -> None:
    path.unlink()
    path.with_name("log-journal").write_bytes(b"left by a process that was killed")
    AppendLog.create(path, b"first")
    assert not path.with_name("log-journal").exists()
    with closing(AppendLog.open(path)) as log:
        assert log.newest.seq == 1


def test_entries_are_read_by_number_and_by_key(path: Path) -> None:
    with closing(AppendLog.open(path)) as log:
        assert log.read(1) == b"first"
        assert log.find("key 3") == (5, BODIES[3])
        assert log.find("key 9") is None
        assert log.read(8) is None


def test_the_chain_is_that_of_its_entries(path: Path) -> None:
    head = following(Head(0, bytes(32)), None, b"first")
    with closing(AppendLog.open(path)) as log:
        for number, body in enumerate(BODIES):
            head, before = following(head, f"key {number}", body), head
            assert log.knows(head.hash)
        assert (log.newest, log.before) == (head, before.hash)
        assert not log.knows(bytes(32))


def test_values_are_replaced_and_only_the_newest_are_kept(path: Path) -> None:
    with closing(AppendLog.open(path)) as log:
        assert log.kept("name 0") == (6, BODIES[4])
        log.keep("name 0", b"other")
        assert log.kept("name 0") == (7, b"other")
        log.append("more", b"", keep=("third", b"3"), most=2)
        assert log.kept("third") == (8, b"3")
        assert len([name for name in ("name 0", "name 1", "third") if log.kept(name)]) == 2
        log.drop("third")
        assert log.kept("third") is None


def test_a_key_names_one_entry(path: Path) -> None:
    with closing(AppendLog.open(path)) as log:
        with pytest.raises(OSError, match="UNIQUE"):
            log.append("key 0", b"other")
        log.append("key 9", b"another")
        assert log.find("key 9") == (8, b"another")


def test_the_file_is_its_owners_and_is_held_by_one_process(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(AppendLog.open(path)), pytest.raises(Refused, match="another process"):
        AppendLog.open(path)


def test_a_failed_append_leaves_the_log_as_it_was(path: Path) -> None:
    with closing(AppendLog.open(path)) as log:
        log.connection.execute("PRAGMA query_only = ON")
        with pytest.raises(OSError, match="readonly"):
            log.append("lost", b"", keep=("name 0", b"lost"))
        log.connection.execute("PRAGMA query_only = OFF")
        assert log.find("lost") is None
        assert log.kept("name 0") == (6, BODIES[4])
        log.append("found", b"")
    assert whole(path)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_damage_is_refused_or_changes_nothing(path: Path, count: int) -> None:
    saved, rng, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(count):
        damaged = bytearray(saved)
        damaged[rng.randrange(len(saved))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        refused += not whole(path)
    assert refused > count // 4  # the others were of unused space
    for _ in range(count // 4):
        path.write_bytes(saved[: rng.randrange(len(saved))])
        assert not whole(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET body = x'00' WHERE number = 3",
        "UPDATE entries SET key = 'other' WHERE number = 3",
        "DELETE FROM entries WHERE number = 3",
        "UPDATE kept SET value = x'00' WHERE name = 'name 1'",
        "UPDATE kept SET number = 3 WHERE name = 'name 1'",
        "DROP TABLE kept",
        "PRAGMA user_version = 2",
    ],
)
def test_an_entry_that_is_altered_or_missing_is_noticed(path: Path, change: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    assert not whole(path)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forked beside threads of numpy's
@pytest.mark.parametrize("committed", [False, True])
def test_a_killed_process_leaves_an_entry_that_is_whole_or_not_there(path: Path, committed: bool) -> None:
    def die_writing() -> None:
        log = AppendLog.open(path)
        if committed:
            log.append("whole", b"whole")
        else:
            log.connection.execute("PRAGMA cache_size = 1")  # so that SQLite writes before the commit
            log.connection.execute("BEGIN IMMEDIATE")
            log.connection.execute("INSERT INTO entries VALUES (8, 'half', ?, x'00')", (bytes(1_000_000),))
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=die_writing)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert whole(path)
    with closing(AppendLog.open(path)) as log:
        assert log.find("half") is None
        assert (log.find("whole") is not None) == committed
