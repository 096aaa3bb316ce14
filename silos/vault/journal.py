"""The file under a silo's ledger: opened by one process, read and checked as a whole, appended to.

An event is an entry (`silos.vault.chain`), committed with everything that it describes, then noted in the
head file (`fedsim.common.head_file`); both are on the disk before the call that reports it returns, and what
is known of it in memory follows. A write that fails, for whatever reason, ends the object: what is on the
disk is not known then, so that everything is refused until the file is opened, and so read, anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from fedsim.common import installed
from fedsim.common.durable import atomic_file, to_disk
from fedsim.common.errors import InputError, Refused
from fedsim.common.head_file import Head, HeadFile
from silos.vault.book import Book, Enrolment, Run, replayed
from silos.vault.chain import GENESIS, SCHEMA, Entry, check_pages, connect, knows, link, readable, text

SECOND = 1_000_000
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first also counts sleep

_CANNOT = "the silo's ledger cannot be written; nothing was released, and nothing is until it is opened anew"
Statement = tuple[str, Sequence[Any]]  # SQL with its values


class Clock:
    """Microseconds since 1970: the latest that was ever stored, or the wall clock's at start if later.

    From there it moves with the machine's monotonic clock: what the wall clock does later, in either
    direction, changes nothing.
    """

    def __init__(self, stored: int) -> None:
        self._start = max(stored, time.time_ns() // 1000)
        self._ticks = time.clock_gettime_ns(_TICKS)

    def now(self) -> int:
        """Never less than before."""
        return self._start + (time.clock_gettime_ns(_TICKS) - self._ticks) // 1000


class Journal:
    """An open file; one process holds it, and its methods may be called from any thread."""

    def __init__(self, connection: sqlite3.Connection, book: Book, noted: HeadFile, file_lock: int) -> None:
        self._connection, self.book, self._noted, self._file_lock = connection, book, noted, file_lock
        self._clock = Clock(book.time)
        self.lock = threading.RLock()
        self._failed = False

    @staticmethod
    def create(path: Path, enrolment: Enrolment) -> None:
        """Enrol, for good: a new ledger, in a directory that exists, which is there as a whole or not at all.
        InputError if there is one already, Refused if it cannot be written.
        """
        lock = _locked(path)
        try:
            if path.exists():
                raise InputError("ledger", str(path), "there is one already: a silo enrols once")
            with atomic_file(path) as draft:
                HeadFile.create(path, _write_first(draft, enrolment))
            to_disk(path.parent)
        except (sqlite3.Error, OSError) as error:
            raise Refused("the silo's ledger cannot be created there") from error
        finally:
            os.close(lock)

    @classmethod
    def open(cls, path: Path, notes: Mapping[str, Any] | None = None) -> Self:
        """Read and check the whole ledger, and note that this process began, with plain values: its `notices`
        are lines for everyone who reads the ledger or a receipt, such as that noise is seeded. InputError if
        there is none; Refused if another process holds it, it was altered, damaged or cut, or cannot be
        written.
        """
        if not path.is_file():
            raise InputError("ledger", str(path), "there is none; a silo's is made when it enrols")
        with ExitStack() as held, readable():
            lock = _locked(path)
            held.callback(os.close, lock)
            connection = connect(path)
            held.callback(connection.close)
            check_pages(connection)
            to_disk(path.resolve().with_name(f"{path.resolve().name}-wal"))  # a kill may have come before
            book = replayed(connection)
            noted = HeadFile.open(path, Head(book.length, bytes.fromhex(book.head)), book.before)
            held.callback(noted.close)
            ledger = cls(connection, book, noted, lock)
            ledger.note("started", {**(notes or {}), "version": installed.version()})
            held.pop_all()
        return ledger

    def close(self) -> None:
        """Let the file go."""
        with self.lock:
            if not self._file_lock:
                return
            self._failed = True
            self._connection.close()
            self._noted.close()
            os.close(self._file_lock)
            self._file_lock = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def failed(self) -> bool:
        """Whether a write failed (or the file was let go): everything is refused from then on."""
        with self.lock:  # or one that is under way would look like one
            return self._failed

    @property
    def enrolment(self) -> Enrolment:
        """Values that were fixed when the silo enrolled."""
        return self.book.enrolment

    @property
    def head(self) -> str:
        """Hash of the last entry, hexadecimal."""
        return self.book.head

    def knows(self, head: str) -> bool:
        """Whether the chain has this head; "" always. If not, entries that a server saw are lost."""
        with self.lock, readable():
            self.check_usable()
            return not head or knows(self._connection, head)

    def now(self) -> int:
        """The ledger's time, microseconds since 1970 (`Clock`)."""
        return self._clock.now()

    def note(self, kind: str, payload: Mapping[str, Any], *statements: Statement) -> Entry:
        """Append an entry and what belongs to it in one durable transaction; Refused if they cannot be."""
        with self.lock:
            self.check_usable()
            written = text(payload)
            seq, time = self.book.length + 1, self.now()
            previous = bytes.fromhex(self.head)
            entry = Entry(seq, time, kind, json.loads(written), link(previous, seq, time, kind, written))
            row = ("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (seq, time, kind, written, entry.hash))
            self._failed = True  # until it is known to be on the disk, and in memory
            try:
                _commit(self._connection, (row, *statements))
                self._noted.write(Head(seq, entry.hash))
            except (sqlite3.Error, OSError) as error:
                raise Refused(_CANNOT) from error
            self.book.add(entry)
            self._failed = False
            return entry

    def expire(self) -> None:
        """Close the runs whose days are over."""
        with self.lock:
            now = self.now()
            for record in [record for record in self.book.runs.values() if record.open]:
                if record.expires <= now:
                    self.end("expired", record, {})

    def end(self, kind: str, record: Run, facts: Mapping[str, Any]) -> None:
        """Close an open run: no round of it is paid for any more, and what it did not use returns."""
        charged = record.used.least(record.price.whole)
        unused = [] if record.rounds else [("DELETE FROM runs WHERE run = ?", (record.run,))]
        self.note(kind, {"run": record.run, "facts": dict(facts), "charged": charged.tree()}, *unused)

    def check_alive(self) -> None:
        """Refuse after the silo's last day."""
        self.book.check_alive(self.now())

    def query(self, sql: str, values: Sequence[Any]) -> Any:
        """One row of what is stored, or None; Refused if it cannot be read."""
        with self.lock, readable():
            self.check_usable()
            return self._connection.execute(sql, values).fetchone()

    def check_usable(self) -> None:
        """Refuse once a write has failed; one that is under way is waited for."""
        with self.lock:
            if self._failed:
                raise Refused(_CANNOT)


def _commit(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(*statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write_first(draft: Path, enrolment: Enrolment) -> Head:
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(draft)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # here, where a kill leaves a draft
        connection.executescript(SCHEMA)
        payload, time = text(enrolment.tree()), Clock(0).now()
        first = link(GENESIS, 1, time, "enrolled", payload)
        row = (1, time, "enrolled", payload, first)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
        connection.commit()
        return Head(1, first)


def _locked(path: Path) -> int:
    """A lock that dies with the process; not of SQLite's kind, which would keep readers out."""
    place = path.resolve()
    try:
        lock = os.open(place.with_name(f"{place.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise Refused(f"the silo's ledger cannot be locked: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise Refused("another process holds the silo's ledger") from None
    return lock


def end_of(day: date) -> int:
    """The end of a day in UTC, microseconds since 1970."""
    after = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    return int(after.timestamp()) * SECOND
