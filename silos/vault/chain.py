"""The chain of entries: a ledger's only truth, as a file of SQLite.

An entry's hash covers the hash before it and everything in the entry, so that a changed, missing, added or
moved entry breaks the chain at that place, and the last hash, the head, stands for all of them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common.errors import InputError, Refused
from fedsim.common.head_file import Head, HeadFile, check_contains

GENESIS = bytes(32)
FILE = "ledger.sqlite"
_APPLICATION = 0x66647331  # in the file's header
FORMAT = 0
"""The header's user_version: 0 since version 0.3.0. A release that changes what is stored counts it up."""

SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX heads ON entries (hash);
CREATE TABLE runs (run TEXT PRIMARY KEY, offer TEXT NOT NULL, secret BLOB NOT NULL) STRICT;
CREATE TABLE replies (
    run TEXT PRIMARY KEY, round INTEGER NOT NULL, reply BLOB NOT NULL, memory BLOB NOT NULL
) STRICT;
"""
"""Besides the entries: a run's offer and secret, and its last reply; entries have their digests."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: `time` in microseconds since 1970, `payload` plain values."""

    seq: int
    time: int
    kind: str
    payload: Mapping[str, Any]
    hash: bytes


def text(payload: Mapping[str, Any]) -> str:
    """Plain values as canonical JSON."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)


def link(previous: bytes, seq: int, time: int, kind: str, payload: str) -> bytes:
    """An entry's hash, SHA-256."""
    return hashlib.sha256(previous + json.dumps([seq, time, kind, payload]).encode()).digest()


def entries(connection: sqlite3.Connection) -> Iterator[Entry]:
    """All entries in order, each checked against the one before it. Refused if the chain is broken; names the
    first entry that does not follow.
    """
    previous, number, then = GENESIS, 0, 0
    rows = connection.execute("SELECT seq, time, kind, payload, hash FROM entries ORDER BY seq")
    for number, (seq, time, kind, payload, found) in enumerate(rows, start=1):
        if seq != number or time < then or found != link(previous, seq, time, kind, payload):
            hint = f"entry {number} does not follow from those before it"
            raise Refused(f"the silo's ledger was altered: {hint}")
        yield Entry(seq, time, kind, json.loads(payload), found)
        previous, then = found, time
    if number == 0:
        raise Refused("the silo's ledger has no entries")


def knows(connection: sqlite3.Connection, head: str) -> bool:
    """Whether a hash, hexadecimal, is that of an entry."""
    try:
        found = bytes.fromhex(head)
    except ValueError:
        return False
    return connection.execute("SELECT 1 FROM entries WHERE hash = ?", (found,)).fetchone() is not None


def check_whole(path: Path, connection: sqlite3.Connection, noted: Head) -> None:
    """Refuse a chain without the entry that its head file had noted before."""
    row = connection.execute("SELECT hash FROM entries WHERE seq = ?", (noted.seq,)).fetchone()
    check_contains(path, noted, row and row[0])


def check_pages(connection: sqlite3.Connection) -> None:
    """Refuse a file that SQLite finds damaged, or that is no ledger."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise Refused("the file is no ledger of a silo")
    if (found := connection.execute("PRAGMA user_version").fetchone()[0]) != FORMAT:
        formats = f"has format {found}, and this version of fedsim {FORMAT}"
        raise Refused(f"the silo's ledger {formats}: it takes a newer fedsim")
    if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
        raise Refused("the silo's ledger is damaged: SQLite finds it inconsistent")


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger to write, each commit on the disk when it returns; sqlite3.Error if it cannot be."""
    _check_exists(path)
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, check_same_thread=False)
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """One moment of a ledger, which a daemon may be writing. Refused if it cannot be read, or is damaged."""
    _check_exists(path)
    noted = HeadFile.read(path)  # before the chain, which may grow
    address = path.resolve().as_uri()
    # A closed ledger is one file, and reading it needs no right to write beside it.
    alone = not path.resolve().with_name(f"{path.name}-wal").exists()
    with readable():
        connection = sqlite3.connect(f"{address}?mode=ro", uri=True)
        try:
            try:
                connection.execute("BEGIN")
                connection.execute("SELECT seq FROM entries LIMIT 1")
            except sqlite3.OperationalError:
                if not alone:
                    raise
                connection.close()
                connection = sqlite3.connect(f"{address}?immutable=1", uri=True)
            check_pages(connection)
            check_whole(path, connection, noted)
            yield connection
        finally:
            connection.close()


@contextmanager
def readable() -> Iterator[None]:
    """Any error of SQLite is a refusal that says nothing of what is stored."""
    try:
        yield
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise Refused("the silo's ledger cannot be read: it is damaged or no ledger") from error


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise InputError("ledger", str(path), "there is none; a silo's is made when it enrols")
