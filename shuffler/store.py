"""What was released, and to which request: noted before the first byte leaves, and never forgotten.

A release of a round that is made twice, once with and once without a silo, shows that silo's answer by
subtraction. So a note is for (run, round), whatever the roster, and none is ever replaced. Of the newest few
runs the last reply is kept too, for a server that did not get it.

Notes are a chain: each entry's hash covers the one before, and the newest is in a head file too
(`fedsim.common.head_file`). A process begins with an entry of 256 random bits, its *start*, for which silos
seal their reports. So notes that were set back, both files together, release nothing twice: the reports of
rounds that they have forgotten are for a start that this process has not.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from fedsim.common.errors import InputError, Refused
from fedsim.common.files import whole_file
from fedsim.common.head_file import Head, HeadFile
from fedsim.secagg.reports import NO_START

KEPT_REPLIES = 8
"""Runs of which the last reply is kept."""
_VERSION = 2
_SCHEMA = f"""
PRAGMA user_version = {_VERSION};
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, run TEXT, round INTEGER, request TEXT NOT NULL, hash BLOB NOT NULL,
    UNIQUE (run, round)
) STRICT;
CREATE TABLE replies (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, round INTEGER NOT NULL, reply BLOB NOT NULL,
    digest BLOB NOT NULL
) STRICT;
"""
"""Without a run, an entry's request is the shuffler's identity (the first) or a start's random bits."""
_GENESIS = Head(0, bytes(32))
_CANNOT = "the shuffler's notes cannot be written; nothing was released, and nothing is until it starts anew"
_ADD = "INSERT INTO entries VALUES (?, ?, ?, ?, ?)"


class Note(NamedTuple):
    """That a round was released: the digest of its request, and the reply where it is still kept."""

    request: str
    reply: bytes | None


class Store(Protocol):
    """What a shuffler remembers; called by one thread at a time.

    Attributes:
        newest: the entry that its chain ends with.
        start: hash of the entry with which this process began, hexadecimal.
    """

    newest: Head
    start: str

    def find(self, run: str, round_index: int) -> Note | None:
        """The note of a round, if there is one."""
        ...

    def knows(self, head: str) -> bool:
        """Whether the chain has an entry of this hash, hexadecimal."""
        ...

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """Note for good that a round is released; the reply may leave once this has returned.

        Raises:
            Refused: there is a note of the round, or it cannot be written.
        """
        ...


def following(newest: Head, run: str | None, round_index: int | None, request: str) -> Head:
    """The entry that comes after another one."""
    number = newest.seq + 1
    told = json.dumps([number, run, round_index, request]).encode()
    return Head(number, hashlib.sha256(newest.hash + told).digest())


class MemoryStore:
    """For a simulation: it is gone with its process, and so are the keys."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], str] = {}
        self._replies: dict[str, tuple[int, bytes]] = {}
        self.newest, self.start = following(_GENESIS, None, None, ""), NO_START

    def find(self, run: str, round_index: int) -> Note | None:
        """See `Store`."""
        request = self._requests.get((run, round_index))
        kept, reply = self._replies.get(run, (None, None))
        return None if request is None else Note(request, reply if kept == round_index else None)

    def knows(self, head: str) -> bool:
        """See `Store`."""
        return head == self.newest.hash.hex()

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """See `Store`."""
        if (run, round_index) in self._requests:
            raise Refused("the round was released before")
        self._requests[run, round_index] = request
        self._replies[run] = round_index, reply
        self.newest = following(self.newest, run, round_index, request)


class FileStore:
    """An SQLite file that one process holds. After a write that failed everything is refused: what is on the
    disk is not known then."""

    def __init__(self, connection: sqlite3.Connection, newest: Head, noted: HeadFile) -> None:
        self._connection, self._noted, self._failed = connection, noted, False
        self.newest = newest
        with self._usable():
            self._add(None, None, secrets.token_hex(32))
        self.start = self.newest.hash.hex()

    @staticmethod
    def create(path: Path, identity: str) -> None:
        """A file without notes, for a shuffler of this public key.

        Raises:
            InputError: there is one already.
            Refused: it cannot be written.
        """
        if path.exists():
            raise InputError("state", str(path), "there are notes already; they are never begun anew")
        first = following(_GENESIS, None, None, identity)
        try:
            with whole_file(path) as draft:
                os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                connection = sqlite3.connect(draft)
                connection.executescript(_SCHEMA)
                connection.execute(_ADD, (first.seq, None, None, identity, first.hash))
                connection.commit()
                connection.close()
                HeadFile.create(path, first)
        except (sqlite3.Error, OSError) as error:
            raise Refused("the shuffler's notes cannot be made there") from error

    @classmethod
    def open(cls, path: Path, identity: str) -> Self:
        """Hold the file, check the whole chain, and add this process's start to it.

        Raises:
            InputError: there is none, or it is of another shuffler: whoever has these keys may have released
                rounds that it does not know.
            Refused: another process holds it, it was set back or damaged, or it cannot be written.
        """
        if not path.is_file():
            raise InputError(
                "state", str(path), "there are no notes; they are made with --enrol, and only then"
            )
        with ExitStack() as held:
            connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
            held.callback(connection.close)
            before, newest = _begin(connection, path, identity)
            noted = HeadFile.open(path, newest, before.hash)
            held.callback(noted.close)
            made = cls(connection, newest, noted)
            held.pop_all()
        return made

    def close(self) -> None:
        """Let the file go."""
        self._failed = True
        self._connection.close()
        self._noted.close()

    def find(self, run: str, round_index: int) -> Note | None:
        """See `Store`.

        Raises:
            Refused: the file cannot be read.
        """
        with self._usable():
            row = self._connection.execute(
                "SELECT request, reply FROM entries LEFT JOIN replies USING (run, round)"
                " WHERE run = ? AND round = ?",
                (run, round_index),
            ).fetchone()
        return None if row is None else Note(*row)

    def knows(self, head: str) -> bool:
        """See `Store`."""
        with self._usable():
            sql = "SELECT 1 FROM entries WHERE hash = ?"
            return self._connection.execute(sql, (bytes.fromhex(head),)).fetchone() is not None

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """See `Store`."""
        digest = hashlib.sha256(reply).digest()
        with self._usable():
            self._add(
                run,
                round_index,
                request,
                ("DELETE FROM replies WHERE run = ?", (run,)),
                (
                    "INSERT INTO replies (run, round, reply, digest) VALUES (?, ?, ?, ?)",
                    (run, round_index, reply, digest),
                ),
                (
                    "DELETE FROM replies WHERE number <= (SELECT max(number) FROM replies) - ?",
                    (KEPT_REPLIES,),
                ),
            )

    def _add(
        self, run: str | None, round_index: int | None, request: str, *more: tuple[str, tuple[object, ...]]
    ) -> None:
        """An entry with what belongs to it, then its head: on the disk when this returns."""
        entry = following(self.newest, run, round_index, request)
        self._connection.execute("BEGIN IMMEDIATE")
        for sql, values in ((_ADD, (entry.seq, run, round_index, request, entry.hash)), *more):
            self._connection.execute(sql, values)
        self._connection.execute("COMMIT")
        self._noted.write(entry)
        self.newest = entry

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Whatever fails in here fails for good."""
        if self._failed:
            raise Refused(_CANNOT)
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._failed = True
            raise Refused(_CANNOT) from error


def _begin(connection: sqlite3.Connection, path: Path, identity: str) -> tuple[Head, Head]:
    """Take the file; the last two entries of its chain, which is whole."""
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = EXTRA")  # the journal's removal is on the disk too
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        damage = connection.execute("PRAGMA integrity_check").fetchone()
        version = connection.execute("PRAGMA user_version").fetchone()
        if damage != ("ok",) or version != (_VERSION,):
            raise Refused("the shuffler's notes are damaged, or of another version of fedsim")
        first = connection.execute("SELECT request FROM entries WHERE number = 1").fetchone()
        ends = _checked(connection)
    except sqlite3.OperationalError as error:
        raise Refused("another process holds the shuffler's notes, or they cannot be read") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise Refused("the shuffler's notes are damaged") from error
    if first != (identity,):
        raise InputError("state", str(path), "notes of the shuffler whose keys are beside them")
    return ends


def _checked(connection: sqlite3.Connection) -> tuple[Head, Head]:
    before = newest = _GENESIS
    for number, *told, found in connection.execute("SELECT * FROM entries ORDER BY number"):
        before, newest = newest, following(newest, *told)
        if (number, found) != newest:
            raise Refused(f"the shuffler's notes were altered: entry {newest.seq} does not follow")
    for run, index, reply, digest in connection.execute("SELECT run, round, reply, digest FROM replies"):
        sql = "SELECT 1 FROM entries WHERE run = ? AND round = ?"
        known = connection.execute(sql, (run, index)).fetchone()
        if known is None or hashlib.sha256(reply).digest() != digest:
            raise Refused("the shuffler's notes were altered: a stored reply is not the one that was given")
    return before, newest
