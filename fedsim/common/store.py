"""An append-only store: a chain of entries (`fedsim.common.chain`) and what belongs to them, in one file.

No entry is ever changed. One is in the store, with what belongs to it, once `append` returns, or not at
all. A store that has lost its *last* entries is whole in itself. So a guarded one has its newest entry in a
head file too (`fedsim.common.head_file`), and ends with the first write that fails: what is on the disk is
not known then, so that everything is refused until the file is opened, and so read, anew.

Bodies, which are bytes by name, stand beside the entries, each bound to the entry that was the newest when it
was kept. They may be replaced and dropped, of which the chain knows nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from fedsim.common.chain import (
    BODIES,
    GENESIS,
    SELECT,
    Entry,
    Layout,
    chained,
    check_file,
    connect,
    errors,
    following,
    knows,
    meant,
)
from fedsim.common.durable import atomic_file, to_disk
from fedsim.common.errors import Busy, Refused
from fedsim.common.head_file import Head, HeadFile

Statement = tuple[str, Sequence[Any]]  # SQL with its values
_ADD = "INSERT INTO entries VALUES (?, ?, ?, ?, ?)"
_LAST = "SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1"
_KEEP = "INSERT OR REPLACE INTO bodies VALUES (?, ?, ?, ?)"


def _nothing(entry: Entry) -> None:
    """What follows from an entry where nothing does."""


class Store:
    """An open file, which this process holds; a guarded one may be called from any thread.

    Attributes:
        newest: the last entry.
        damaged: entries that do not follow from those before them, where it was opened in spite of them.
        lock: is held while anything is read or written.
    """

    def __init__(self, path: Path, layout: Layout, connection: sqlite3.Connection, held: ExitStack) -> None:
        self.path, self.layout, self.connection, self._held = path, layout, connection, held
        self.newest, self.damaged, self.lock = GENESIS, list[Entry](), threading.RLock()
        self._noted: HeadFile | None = None
        self._odd = set[str]()  # bodies that are not what was kept
        self._failed = False

    @staticmethod
    def make(path: Path, layout: Layout, kind: str, payload: str, time: int = 0) -> None:
        """A new file of one entry, mode 0600, in a folder that exists, which is there as a whole or not at
        all. FileExistsError if there is one already; OSError, Refused where it is guarded, if it cannot be
        written.
        """
        first = following(GENESIS, kind, payload, time)
        with ExitStack() as held:
            if layout.shared:
                held.callback(os.close, _locked(path, layout))
            if path.exists():
                raise FileExistsError(errno.EEXIST, "there is one already", str(path))
            held.enter_context(errors(layout, path))
            with atomic_file(path) as draft:
                os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                with closing(sqlite3.connect(draft)) as connection:
                    if layout.shared:
                        connection.execute("PRAGMA journal_mode = WAL")  # here, where a kill leaves a draft
                    connection.executescript(layout.schema)
                    connection.execute(_ADD, first)
                    connection.commit()
                if layout.guarded:
                    HeadFile.create(path, first.head)
                path.with_name(f"{path.name}-journal").unlink(missing_ok=True)  # of one removed alone
            to_disk(path.parent)  # the new file's name

    @classmethod
    def hold(
        cls,
        path: Path,
        layout: Layout,
        take: Callable[[Entry], None] = _nothing,
        *,
        tolerant: bool = False,
        durable: bool = True,
    ) -> Self:
        """Hold a file until `close`, and read all of it: `take` gets its entries in order.

        A tolerant store is made where there is none. `damaged` has those of its entries that do not follow
        from the ones before, and a damaged body is missing; any other store is refused then. One that is not
        durable may lose entries with the power, not with the process.

        Raises:
            Refused: it is damaged, altered, or of another version or kind.
            BlockingIOError: another process has it open; Refused where it is guarded.
            OSError: it cannot be read or written; Refused where it is guarded.
        """
        with ExitStack() as held, errors(layout, path):
            if layout.shared:
                held.callback(os.close, _locked(path, layout))
            connection = connect(path, layout, make=tolerant, durable=durable)
            held.callback(connection.close)
            check_file(connection, path, layout, pages=not tolerant)
            made = cls(path, layout, connection, held)
            if layout.shared:
                to_disk(path.resolve().with_name(f"{path.resolve().name}-wal"))  # a kill may have come before
            for entry in chained(connection, layout, made.damaged if tolerant else None):
                take(entry)
            ends = connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 2").fetchall()
            made.newest, before = ([Head(*end) for end in ends] + [GENESIS] * 2)[:2]
            if layout.guarded:
                made._noted = HeadFile.open(path, made.newest, before.hash)
                held.callback(made._noted.close)
            if BODIES in layout.tables:
                made._check_bodies(tolerant)
            made._held = held.pop_all()
        return made

    def close(self) -> None:
        """Let the file go."""
        with self.lock:
            self._failed = True
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def failed(self) -> bool:
        """Whether a write failed, or the file was let go: everything is refused from then on."""
        with self.lock:  # or one that is under way would look like one
            return self._failed

    def check_usable(self) -> None:
        """Refuse once a write has failed; one that is under way is waited for."""
        if self.failed:
            raise Busy(self._cannot)

    @property
    def _cannot(self) -> str:
        why = "nothing was released, and nothing is until it is opened anew"
        return f"{self.layout.name} cannot be written; {why}"

    def append(
        self,
        kind: str,
        payload: str,
        *statements: Statement,
        time: int = 0,
        bodies: Mapping[str, bytes] = MappingProxyType({}),
        then: Callable[[Entry], None] = _nothing,
    ) -> Entry:
        """Add an entry and what belongs to it in one durable transaction; `then` takes it in before anything
        else is asked of the store. OSError if it cannot be written, and the store is as it was; Refused where
        it is guarded, for good.
        """
        with self.lock:
            entry = following(self.newest, kind, payload, time)
            kept = [(_KEEP, _bound(entry.seq, name, body)) for name, body in bodies.items()]
            self._write((_ADD, entry), *kept, *statements, entry=entry, then=then)
            return entry

    def keep(self, name: str, body: bytes) -> None:
        """Keep a body in place of the one of this name; see `append`."""
        with self.lock:
            self._write((_KEEP, _bound(self.newest.seq, name, body)))
            self._odd.discard(name)

    def drop(self, name: str) -> None:
        """Keep a body no longer; see `append`."""
        with self.lock:
            self._write(("DELETE FROM bodies WHERE name = ?", (name,)))

    def forget(self) -> None:
        """Keep no body any longer, and give the disk back what they took; see `append`."""
        with self.lock:
            self._write(("DELETE FROM bodies", ()))
            self._write(("VACUUM", ()))

    def _write(
        self, *statements: Statement, entry: Entry | None = None, then: Callable[[Entry], None] = _nothing
    ) -> None:
        self.check_usable()
        guarded = self._failed = self.layout.guarded  # until it is known to be on the disk, and in memory
        try:
            self._commit(statements)
            if entry is not None and self._noted is not None:
                self._noted.write(entry.head)
        except (sqlite3.Error, OSError) as error:
            told = Busy(self._cannot) if guarded else meant(error, self.layout, self.path)
            raise told from error
        except BaseException:  # an interrupt, before the write or after it: the file says which
            if not guarded and (last := self.connection.execute(_LAST).fetchone()) is not None:
                self.newest = Head(*last)
            raise
        if entry is not None:
            self.newest = entry.head
            then(entry)
        self._failed = False

    def _commit(self, statements: Sequence[Statement]) -> None:
        if len(statements) == 1:  # a transaction of its own
            self.connection.execute(*statements[0])
            return
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            for statement in statements:
                self.connection.execute(*statement)
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def query(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """One row of what is stored, or None; Refused if it cannot be read."""
        with self.lock, errors(self.layout, self.path):
            self.check_usable()
            return self.connection.execute(sql, values).fetchone()

    def next(self, kind: str, after: int = 0) -> Entry | None:
        """The first entry of a kind after a number."""
        row = self.query(f"{SELECT} WHERE seq > ? AND kind = ? ORDER BY seq LIMIT 1", (after, kind))
        return None if row is None else Entry(*row)

    def body(self, name: str) -> bytes | None:
        """The body of this name."""
        row = self.query("SELECT body FROM bodies WHERE name = ?", (name,))
        return None if row is None or name in self._odd else bytes(row[0])

    def _check_bodies(self, tolerant: bool) -> None:
        for name, seq, body, digest in self.connection.execute("SELECT * FROM bodies"):
            if not 0 < seq <= self.newest.seq or digest != _bound(seq, name, body)[-1]:
                if not tolerant:
                    raise Refused(f"{self.layout.name} was altered: {name} is not what was kept")
                self._odd.add(name)

    def knows(self, head: str) -> bool:
        """Whether the chain has this head, hexadecimal; "" always. If not, entries that another party saw are
        lost.
        """
        with self.lock, errors(self.layout, self.path):
            self.check_usable()
            return not head or knows(self.connection, head)


def _bound(seq: int, name: str, body: bytes) -> tuple[str, int, bytes, bytes]:
    """A row of a body, with its digest."""
    made = hashlib.sha256(json.dumps([seq, name]).encode())
    made.update(body)  # which may be large
    return name, seq, body, made.digest()


def _locked(path: Path, layout: Layout) -> int:
    place = path.resolve()
    with errors(layout, path):
        lock = os.open(place.with_name(f"{place.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
    return lock
