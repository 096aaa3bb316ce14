"""What was released, and to which request: noted before the first byte leaves, and never forgotten.

A release of a round that is made twice, once with and once without a silo, shows that silo's answer by
subtraction. So a note is for (run, round), whatever the roster, and none is ever replaced. Of the newest few
runs the last reply is kept too, for a server that did not get it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from fedsim.common.errors import InputError, Refused
from fedsim.common.files import whole_file

KEPT_REPLIES = 8
"""Runs of which the last reply is kept."""
_VERSION = 1
_SCHEMA = f"""
PRAGMA user_version = {_VERSION};
CREATE TABLE shuffler (identity TEXT NOT NULL);
CREATE TABLE released (
    run TEXT NOT NULL, round INTEGER NOT NULL, request TEXT NOT NULL, PRIMARY KEY (run, round)
) WITHOUT ROWID;
CREATE TABLE replies (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, round INTEGER NOT NULL, reply BLOB NOT NULL
);
"""
_CANNOT = "the shuffler's notes cannot be written; nothing was released, and nothing is until it starts anew"


class Note(NamedTuple):
    """That a round was released: the digest of its request, and the reply where it is still kept."""

    request: str
    reply: bytes | None


class Store(Protocol):
    """What a shuffler remembers; called by one thread at a time."""

    def find(self, run: str, round_index: int) -> Note | None:
        """The note of a round, if there is one."""
        ...

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """Note for good that a round is released; the reply may leave once this has returned.

        Raises:
            Refused: there is a note of the round, or it cannot be written.
        """
        ...


class MemoryStore:
    """For a simulation: it is gone with its process, and so are the keys."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], str] = {}
        self._replies: dict[str, tuple[int, bytes]] = {}

    def find(self, run: str, round_index: int) -> Note | None:
        """See `Store`."""
        request = self._requests.get((run, round_index))
        kept, reply = self._replies.get(run, (None, None))
        return None if request is None else Note(request, reply if kept == round_index else None)

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """See `Store`."""
        if (run, round_index) in self._requests:
            raise Refused("the round was released before")
        self._requests[run, round_index] = request
        self._replies[run] = round_index, reply


class FileStore:
    """An SQLite file that one process holds. After a write that failed everything is refused: what is on the
    disk is not known then."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._failed = connection, False

    @staticmethod
    def create(path: Path, identity: str) -> None:
        """A file without notes, for a shuffler of this public key.

        Raises:
            InputError: there is one already.
            Refused: it cannot be written.
        """
        if path.exists():
            raise InputError("state", str(path), "there are notes already; they are never begun anew")
        try:
            with whole_file(path) as draft:
                os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                connection = sqlite3.connect(draft)
                connection.executescript(_SCHEMA)
                connection.execute("INSERT INTO shuffler VALUES (?)", (identity,))
                connection.commit()
                connection.close()
        except (sqlite3.Error, OSError) as error:
            raise Refused("the shuffler's notes cannot be made there") from error

    @classmethod
    def open(cls, path: Path, identity: str) -> Self:
        """Hold the file.

        Raises:
            InputError: there is none, or it is of another shuffler: whoever has these keys may have released
                rounds that it does not know.
            Refused: another process holds it, or it is damaged.
        """
        if not path.is_file():
            raise InputError(
                "state", str(path), "there are no notes; they are made with --enrol, and only then"
            )
        connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            _begin(connection, path, identity)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def close(self) -> None:
        """Let the file go."""
        self._failed = True
        self._connection.close()

    def find(self, run: str, round_index: int) -> Note | None:
        """See `Store`.

        Raises:
            Refused: the file cannot be read.
        """
        with self._usable():
            row = self._connection.execute(
                "SELECT request, reply FROM released LEFT JOIN replies USING (run, round)"
                " WHERE run = ? AND round = ?",
                (run, round_index),
            ).fetchone()
        return None if row is None else Note(*row)

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """See `Store`."""
        with self._usable():
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("INSERT INTO released VALUES (?, ?, ?)", (run, round_index, request))
            self._connection.execute("DELETE FROM replies WHERE run = ?", (run,))
            self._connection.execute(
                "INSERT INTO replies (run, round, reply) VALUES (?, ?, ?)", (run, round_index, reply)
            )
            self._connection.execute(
                "DELETE FROM replies WHERE number <= (SELECT max(number) FROM replies) - ?", (KEPT_REPLIES,)
            )
            self._connection.execute("COMMIT")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Whatever fails in here fails for good."""
        if self._failed:
            raise Refused(_CANNOT)
        try:
            yield
        except sqlite3.Error as error:
            self._failed = True
            raise Refused(_CANNOT) from error


def _begin(connection: sqlite3.Connection, path: Path, identity: str) -> None:
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = EXTRA")  # the journal's removal is on the disk too
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        damage = connection.execute("PRAGMA integrity_check").fetchone()
        version = connection.execute("PRAGMA user_version").fetchone()
        found = connection.execute("SELECT identity FROM shuffler").fetchall()
    except sqlite3.OperationalError as error:
        raise Refused("another process holds the shuffler's notes, or they cannot be read") from error
    except sqlite3.DatabaseError as error:
        raise Refused("the shuffler's notes are damaged") from error
    if damage != ("ok",) or version != (_VERSION,):
        raise Refused("the shuffler's notes are damaged, or of another version of fedsim")
    if found != [(identity,)]:
        raise InputError("state", str(path), "notes of the shuffler whose keys are beside them")
