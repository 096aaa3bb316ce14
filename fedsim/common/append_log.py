"""An append-only log in an SQLite file: an entry is never changed, and is on the disk once `append` returns.

Entries form a hash chain, which is checked as a whole when the file is opened: an entry that was altered, or
that is missing before the last one, is found. A log that has lost its *last* entries is whole in itself;
a caller that must notice keeps the newest entry elsewhere too (`fedsim.common.head_file`). Beside its entries
a log keeps a few named values, which may be replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from fedsim.common.durable import atomic_file, to_disk
from fedsim.common.errors import Refused
from fedsim.common.head_file import Head

_VERSION = 3
_SCHEMA = f"""
PRAGMA user_version = {_VERSION};
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, key TEXT UNIQUE, body BLOB NOT NULL, hash BLOB NOT NULL
) STRICT;
CREATE TABLE kept (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL, value BLOB NOT NULL, digest BLOB NOT NULL
) STRICT;
"""
_GENESIS = Head(0, bytes(32))
_ADD = "INSERT INTO entries VALUES (?, ?, ?, ?)"
_KEEP = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)"
_TRIM = "DELETE FROM kept WHERE name NOT IN (SELECT name FROM kept ORDER BY number DESC LIMIT ?)"


def following(newest: Head, key: str | None, body: bytes) -> Head:
    """The number and hash of the entry that comes after `newest`."""
    number = newest.seq + 1
    return Head(number, hashlib.sha256(newest.hash + json.dumps([number, key]).encode() + body).digest())


class AppendLog:
    """A log that this process holds, for one thread at a time. `newest` is the last entry; `before` is the
    hash of the one before it, 32 bytes.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection, self._name = connection, name
        self.before, self.newest = _checked(connection, name)

    @staticmethod
    def create(path: Path, body: bytes) -> Head:
        """Write a log of one entry without a key, mode 0600, in place of what is there; returns the entry.
        OSError if it cannot be written.
        """
        first = following(_GENESIS, None, body)
        with _as_os_errors(path.name), atomic_file(path) as draft:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(draft)) as connection:
                connection.executescript(_SCHEMA)
                connection.execute(_ADD, (first.seq, None, body, first.hash))
                connection.commit()
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)  # of a file that was removed alone
        to_disk(path.parent)  # the new file's name
        return first

    @classmethod
    def open(cls, path: Path) -> Self:
        """Hold a log's file until `close`, and check all of it. Refused if another process holds the file, or
        it is damaged, altered or no log of this version.
        """
        with ExitStack() as held:
            try:
                place = f"{path.absolute().as_uri()}?mode=rw"  # SQLite would make a file that is missing
                connection = sqlite3.connect(
                    place, timeout=1.0, isolation_level=None, check_same_thread=False, uri=True
                )
                held.callback(connection.close)
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = EXTRA")  # the removal of its journal is synced too
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
                made = cls(connection, path.name)
            except sqlite3.OperationalError as error:
                raise Refused(f"another process holds {path.name}, or it cannot be read") from error
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                raise Refused(f"{path.name} is damaged") from error
            held.pop_all()
        return made

    def append(
        self, key: str | None, body: bytes, keep: tuple[str, bytes] | None = None, most: int | None = None
    ) -> None:
        """Add an entry for good, below 1 GB, by a `key` that no other entry has; the method `keep` then keeps
        a name and a value with it, and `most` values stay at most, those of the newest entries. OSError if it
        cannot be written; the log is as it was.
        """
        entry = following(self.newest, key, body)
        with self._transaction() as connection:
            connection.execute(_ADD, (entry.seq, key, body, entry.hash))
            if keep is not None:
                connection.execute(_KEEP, _row(entry.seq, *keep))
            if most is not None:
                connection.execute(_TRIM, (most,))
        self.before, self.newest = self.newest.hash, entry

    def read(self, number: int) -> bytes | None:
        """The body of an entry, from 1; None after the last one."""
        row = self.connection.execute("SELECT body FROM entries WHERE number = ?", (number,)).fetchone()
        return None if row is None else bytes(row[0])

    def find(self, key: str) -> tuple[int, bytes] | None:
        """The number and body of the entry with a key, if there is one."""
        sql = "SELECT number, body FROM entries WHERE key = ?"
        found: tuple[int, bytes] | None = self.connection.execute(sql, (key,)).fetchone()
        return found

    def knows(self, entry_hash: bytes) -> bool:
        """Whether an entry has this hash."""
        sql = "SELECT 1 FROM entries WHERE hash = ?"
        return self.connection.execute(sql, (entry_hash,)).fetchone() is not None

    def keep(self, name: str, value: bytes) -> None:
        """Keep a value in place of the one of this name; it is on the disk when this returns. OSError if it
        cannot be written; the value before is still there.
        """
        with self._transaction() as connection:
            connection.execute(_KEEP, _row(self.newest.seq, name, value))

    def kept(self, name: str) -> tuple[int, bytes] | None:
        """A value, and the number of the entry that was the newest one when it was kept."""
        sql = "SELECT number, value FROM kept WHERE name = ?"
        found: tuple[int, bytes] | None = self.connection.execute(sql, (name,)).fetchone()
        return found

    def drop(self, name: str) -> None:
        """Keep a value no longer."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM kept WHERE name = ?", (name,))

    def close(self) -> None:
        """Let another process hold the file."""
        self.connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _as_os_errors(self._name):
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
                raise


def _checked(connection: sqlite3.Connection, name: str) -> tuple[bytes, Head]:
    """The hash of the entry before the newest one, and the newest one, of a log that is whole. Refused if it
    is not, or of another version; sqlite3.DatabaseError if it cannot be read.
    """
    damage = connection.execute("PRAGMA integrity_check").fetchone()
    if damage != ("ok",) or connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
        raise Refused(f"{name} is damaged, or of another version of fedsim")
    before, newest = b"", _GENESIS
    for number, key, body, found in connection.execute("SELECT * FROM entries ORDER BY number"):
        before, newest = newest.hash, following(newest, key, body)
        if (number, found) != newest:
            raise Refused(f"{name} was altered: entry {newest.seq} does not follow the one before")
    for kept, number, value, digest in connection.execute("SELECT * FROM kept"):
        if not 0 < number <= newest.seq or _row(number, kept, value)[-1] != digest:
            raise Refused(f"{name} was altered: a value is not the one that was kept")
    return before, newest


def _row(number: int, name: str, value: bytes) -> tuple[str, int, bytes, bytes]:
    digest = hashlib.sha256(json.dumps([number, name]).encode() + value).digest()
    return name, number, value, digest


@contextmanager
def _as_os_errors(name: str) -> Iterator[None]:
    """SQLite's errors as OSError: callers need not know what the file is."""
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(f"{name}: {error}") from error
