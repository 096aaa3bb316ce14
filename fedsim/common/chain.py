"""A chain of entries in an SQLite file, and how it is read: the format of all that is kept as it happens.

An entry's hash covers the hash before it and everything in the entry, so that a changed, missing, added or
moved entry breaks the chain at that place, and the last hash, the head, stands for all of them. What is done
with such a file is `fedsim.common.store`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any, NamedTuple

from fedsim.common.errors import InputError, Refused
from fedsim.common.head_file import Head, HeadFile, check_contains

GENESIS = Head(0, bytes(32))
_ENTRIES = """
PRAGMA application_id = {application};
PRAGMA user_version = {version};
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
    hash BLOB NOT NULL
) STRICT;
"""
BODIES = """
CREATE TABLE bodies (
    name TEXT PRIMARY KEY, seq INTEGER NOT NULL, body BLOB NOT NULL, digest BLOB NOT NULL
) STRICT;
"""
_SHARED = "journal_mode = WAL", "synchronous = FULL"
_ALONE = "locking_mode = EXCLUSIVE", "synchronous = EXTRA", "secure_delete = ON"


@dataclass(frozen=True)
class Layout:
    """How files of a kind are kept.

    Attributes:
        name: what messages call one.
        application, version: application_id and user_version in its header. A release that changes what is
            stored counts the version up.
        otherwise: what to do with a file that has others.
        tables: SQL of what it has besides its entries, by default bodies.
        guarded: whether a guarantee rests on it (`fedsim.common.store`): all that goes wrong is `Refused`.
        shared: whether others read it while one process writes: it has a write-ahead log then, and a lock
            file, which dies with the process and does not keep readers out, as SQLite's would.
    """

    name: str
    application: int
    version: int
    otherwise: str
    tables: str = BODIES
    guarded: bool = False
    shared: bool = False

    @property
    def schema(self) -> str:
        """SQL of a new file."""
        return _ENTRIES.format(application=self.application, version=self.version) + self.tables


RUN = Layout(
    "the run's record",
    0x66647232,
    1,
    "go on with the version of fedsim that wrote it, or remove it to begin anew",
)
"""The one file of a run or sweep: what its server keeps to go on from, and what was measured."""


class Entry(NamedTuple):
    """One event: `time` in microseconds since 1970, or 0; `payload` is JSON."""

    seq: int
    time: int
    kind: str
    payload: str
    hash: bytes

    @property
    def head(self) -> Head:
        """Its number and hash."""
        return Head(self.seq, self.hash)


def text(payload: Mapping[str, Any]) -> str:
    """Plain values as canonical JSON."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)


def following(newest: Head, kind: str, payload: str, time: int = 0) -> Entry:
    """The entry that comes after `newest`."""
    seq = newest.seq + 1
    return Entry(seq, time, kind, payload, _link(newest.hash, seq, time, kind, payload))


def _link(previous: bytes, seq: int, time: int, kind: str, payload: str) -> bytes:
    event = f"[{seq}, {time}, {_quoted(kind)}, {_quoted(payload)}]"  # JSON of a list
    return hashlib.sha256(previous + event.encode()).digest()


SELECT = "SELECT seq, time, kind, payload, hash FROM entries"
_BYTES = "SELECT seq, time, CAST(kind AS BLOB), CAST(payload AS BLOB), hash FROM entries ORDER BY seq"


def chained(
    connection: sqlite3.Connection, layout: Layout, damaged: list[Entry] | None = None
) -> Iterator[Entry]:
    """All entries in order, each checked against the one before it. Those that do not follow go to `damaged`;
    without it the chain is refused at the first of them, and if it has none.
    """
    previous, number, then = [GENESIS.hash], 0, 0  # after a damaged entry, whichever of its hashes is right
    for number, (seq, time, its_kind, its_payload, found) in enumerate(connection.execute(_BYTES), start=1):
        kind = (its_kind or b"").decode(errors="replace")  # damage is for the chain to find
        payload = (its_payload or b"").decode(errors="replace")
        links = [_link(before, seq, time, kind, payload) for before in previous]
        if found in links and (damaged is not None or (seq == number and time >= then)):
            yield Entry(seq, time, kind, payload, found)
            previous, then = [found], time
        elif damaged is not None:
            damaged.append(Entry(seq, time, kind, payload, found))
            previous = [found, *links]
        else:
            hint = f"entry {number} does not follow from those before it"
            raise Refused(f"{layout.name} was altered: {hint}")
    if number == 0 and damaged is None:
        raise Refused(f"{layout.name} has no entries")


def knows(connection: sqlite3.Connection, head: str) -> bool:
    """Whether a hash, hexadecimal, is that of an entry."""
    with suppress(ValueError):
        sql = "SELECT 1 FROM entries WHERE hash = ?"
        return connection.execute(sql, (bytes.fromhex(head),)).fetchone() is not None
    return False


@contextmanager
def reading(path: Path, layout: Layout) -> Iterator[sqlite3.Connection]:
    """One moment of a file, which another process may be writing where it is shared. Errors are those of
    `Store.hold`; those inside the block, too.
    """
    with errors(layout, path), ExitStack() as held:
        noted = HeadFile.read(path) if layout.guarded else None  # before the chain, which may grow
        place = path.resolve()
        # A closed ledger is one file, and reading it needs no right to write beside it.
        alone = layout.shared and not place.with_name(f"{place.name}-wal").exists()
        connection = held.enter_context(closing(_opened(place, "mode=ro")))
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM sqlite_master")
        except sqlite3.OperationalError:
            if not alone:
                raise
            connection = held.enter_context(closing(_opened(place, "immutable=1")))
        check_file(connection, path, layout, pages=layout.guarded)
        if noted is not None:
            row = connection.execute("SELECT hash FROM entries WHERE seq = ?", (noted.seq,)).fetchone()
            check_contains(path, noted, row and row[0])
        yield connection


def connect(path: Path, layout: Layout, make: bool = False, durable: bool = True) -> sqlite3.Connection:
    """Open a file to write, each commit on the disk when it returns; with `make` a new one too."""
    connection = _opened(path.resolve(), f"mode={'rwc' if make else 'rw'}", 5.0 if layout.shared else 1.0)
    try:
        for setting in _SHARED if layout.shared else _ALONE:
            connection.execute(f"PRAGMA {setting}")
        if not durable:
            connection.execute("PRAGMA synchronous = OFF")
        if not layout.shared:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
        if make and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            connection.executescript(f"BEGIN; {layout.schema} COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(place: Path, how: str, seconds: float = 5.0) -> sqlite3.Connection:
    address = f"{place.as_uri()}?{how}"
    return sqlite3.connect(address, uri=True, timeout=seconds, isolation_level=None, check_same_thread=False)


def check_file(connection: sqlite3.Connection, path: Path, layout: Layout, pages: bool = True) -> None:
    """Refuse a file of another format or kind, or of which SQLite finds the pages damaged."""
    header = "application_id", "user_version"
    found = [connection.execute(f"PRAGMA {each}").fetchone()[0] for each in header]
    if found != [layout.application, layout.version]:
        what = f"{layout.name} in the format of this version of fedsim"
        raise Refused(f"{path.name} is not {what}: {layout.otherwise}")
    if pages and connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
        raise Refused(f"{layout.name} is damaged: SQLite finds it inconsistent")


@contextmanager
def errors(layout: Layout, path: Path) -> Iterator[None]:
    """Errors of SQLite, of the system and of what is stored, as those of `Store.hold`; none says anything of
    what is stored.
    """
    try:
        yield
    except (InputError, Refused):
        raise
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
        raise meant(error, layout, path) from error


def meant(error: Exception, layout: Layout, path: Path) -> Exception:
    """See `errors`."""
    if isinstance(error, BlockingIOError) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
        held = f"another process holds {layout.name}"
        return Refused(held) if layout.guarded else BlockingIOError(errno.EWOULDBLOCK, held, str(path))
    if layout.guarded:
        by_sqlite = "it is damaged, or its disk full or read-only"
        reason = error.strerror if isinstance(error, OSError) else by_sqlite
        return Refused(f"{layout.name} cannot be read or written: {reason}")
    if isinstance(error, sqlite3.OperationalError):
        return _by_system(path, str(error))
    return error if isinstance(error, OSError) else Refused(f"{path.name} is damaged")


def _by_system(path: Path, reason: str) -> OSError:
    """The system's error where SQLite failed to write: a write beside the file fails in the same way."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(b"\0" * (path.stat().st_size + 2**16))
    except OSError as error:
        return OSError(error.errno, error.strerror, str(path))
    return OSError(errno.EIO, reason, str(path))
