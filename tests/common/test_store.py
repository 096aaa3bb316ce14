"""A store keeps every entry that it has acknowledged, and notices every change.

Stores of each kind: a silo's ledger (`tests/silos/test_ledger_*`), a shuffler's notes
(`tests/shuffler/test_released_notes.py`) and a run's record, which is the one here.
"""

import multiprocessing
import os
import random
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.common.chain import GENESIS, RUN, Entry, chained, following
from fedsim.common.errors import Refused
from fedsim.common.store import Store

BODIES = [bytes([number]) * 3000 for number in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Store.make(tmp_path / "log", RUN, "first", "{}")
    with Store.hold(tmp_path / "log", RUN) as store:
        for number, body in enumerate(BODIES):
            bodies = {f"body {number}": body, f"last {number % 2}": body}
            store.append("kind", f'{{"number": {number}}}', bodies=bodies)
    return tmp_path / "log"


def whole(path: Path) -> bool:
    """Whether the store opens, and then with all its entries; False where it is refused."""
    kinds = list[str]()
    try:
        with Store.hold(path, RUN, lambda entry: kinds.append(entry.kind)) as store:
            assert kinds[:7] == ["first", *["kind"] * 6]
            assert [store.body(f"body {number}") for number in range(6)] == BODIES
            return True
    except (Refused, OSError):
        return False


def test_a_journal_that_was_left_behind_is_not_rolled_into_a_new_store(path: Path) -> None:
    path.unlink()
    path.with_name("log-journal").write_bytes(b"left by a process that was killed")
    Store.make(path, RUN, "first", "{}")
    assert not path.with_name("log-journal").exists()
    with Store.hold(path, RUN) as store:
        assert store.newest.seq == 1


def test_after_an_interrupt_the_file_says_whether_an_entry_is_in_it(path: Path, monkeypatch) -> None:
    with Store.hold(path, RUN) as store:
        commit = store._commit

        def late(statements):
            commit(statements)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store, "_commit", late)
            with pytest.raises(KeyboardInterrupt):
                store.append("kind", "{}")
        assert store.append("kind", "{}").seq == 9
    assert whole(path)


def test_an_entry_whose_text_is_gone_is_damaged() -> None:
    """As where a bit of a page's header makes SQLite read NULL."""
    with closing(sqlite3.connect(":memory:")) as table:
        table.execute("CREATE TABLE entries (seq, time, kind, payload, hash)")
        table.execute("INSERT INTO entries VALUES (1, 0, NULL, NULL, x'00')")
        damaged = list[Entry]()
        assert list(chained(table, RUN, damaged)) == []
        assert [entry.seq for entry in damaged] == [1]


def test_a_store_is_made_once(path: Path) -> None:
    with pytest.raises(FileExistsError):
        Store.make(path, RUN, "first", "{}")
    assert whole(path)


def test_the_chain_is_that_of_its_entries(path: Path) -> None:
    entry = following(GENESIS, "first", "{}")
    with Store.hold(path, RUN) as store:
        assert store.next("first") == entry
        for number in range(6):
            before, entry = entry.seq, following(entry.head, "kind", f'{{"number": {number}}}')
            assert store.knows(entry.hash.hex())
            assert store.next("kind", after=before) == entry
        assert store.next("kind", after=entry.seq) is None
        assert store.newest == entry.head
        assert not store.knows("00" * 32)


def test_bodies_are_replaced_and_dropped_and_the_chain_stays(path: Path) -> None:
    with Store.hold(path, RUN) as store:
        newest = store.newest
        assert store.body("last 0") == BODIES[4]
        store.keep("last 0", b"other")
        assert store.body("last 0") == b"other"
        store.drop("last 0")
        assert store.body("last 0") is None
        assert store.newest == newest
    assert whole(path)


def test_the_file_is_its_owners_and_is_held_by_one_process(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with Store.hold(path, RUN), pytest.raises(BlockingIOError, match="another process"):
        Store.hold(path, RUN)


@pytest.mark.parametrize("name", ["application", "version"])
def test_a_file_of_another_kind_or_version_is_refused_with_what_to_do(name: str, path: Path) -> None:
    as_it_was = path.read_bytes()
    with pytest.raises(Refused, match="go on with the version of fedsim that wrote it"):
        Store.hold(path, replace(RUN, **{name: 9}), tolerant=True)
    assert path.read_bytes() == as_it_was


def test_a_failed_append_leaves_the_store_as_it_was(path: Path) -> None:
    with Store.hold(path, RUN) as store:
        newest = store.newest
        store.connection.execute("PRAGMA query_only = ON")
        with pytest.raises(OSError, match="readonly"):
            store.append("lost", "{}", bodies={"last 0": b"lost"})
        store.connection.execute("PRAGMA query_only = OFF")
        assert (store.newest, store.next("lost")) == (newest, None)
        assert store.body("last 0") == BODIES[4]
        store.append("found", "{}")
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
        "UPDATE entries SET payload = '{}' WHERE seq = 3",
        "UPDATE entries SET payload = CAST(x'ff' AS TEXT) WHERE seq = 3",
        "UPDATE entries SET kind = 'other' WHERE seq = 3",
        "UPDATE entries SET time = 1 WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 3",
        "UPDATE bodies SET body = x'00' WHERE name = 'last 1'",
        "UPDATE bodies SET name = 'other' WHERE name = 'last 1'",
        "UPDATE bodies SET seq = 3 WHERE name = 'last 1'",
        "DROP TABLE bodies",
        "DELETE FROM entries",
    ],
)
def test_what_is_altered_or_missing_is_noticed(path: Path, change: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    assert not whole(path)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forked beside threads of numpy's
@pytest.mark.parametrize("committed", [False, True])
def test_a_killed_process_leaves_an_entry_that_is_whole_or_not_there(path: Path, committed: bool) -> None:
    def die_writing() -> None:
        store = Store.hold(path, RUN)
        if committed:
            store.append("whole", "{}")
        else:
            store.connection.execute("PRAGMA cache_size = 1")  # so that SQLite writes before the commit
            store.connection.execute("BEGIN IMMEDIATE")
            row = 8, 0, "half", " " * 1_000_000, b""
            store.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=die_writing)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert whole(path)
    with Store.hold(path, RUN) as store:
        assert store.next("half") is None
        assert (store.next("whole") is not None) == committed
