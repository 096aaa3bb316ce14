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

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from fedsim.common.append_log import AppendLog, following
from fedsim.common.errors import InputError, Refused
from fedsim.common.head_file import Head, HeadFile
from fedsim.secagg.reports import NO_START

KEPT_REPLIES = 8  # runs whose last reply is kept
_CANNOT = "the shuffler's notes cannot be written; nothing was released, and nothing is until it starts anew"


class Note(NamedTuple):
    """That a round was released: the digest of its request, and the reply where it is still kept."""

    request: str
    reply: bytes | None


def released(newest: Head, run: str, round_index: int, request: str) -> Head:
    """The entry of a release that comes after another entry."""
    return following(newest, _key(run, round_index), request.encode())


def _key(run: str, round_index: int) -> str:
    return f"{run} {round_index}"


class MemoryStore:
    """For a simulation: it is gone with its process, and so are the keys."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], str] = {}
        self._replies: dict[str, tuple[int, bytes]] = {}
        self.newest, self.start = following(Head(0, bytes(32)), None, b""), NO_START

    def find(self, run: str, round_index: int) -> Note | None:
        """See `FileStore`."""
        request = self._requests.get((run, round_index))
        kept, reply = self._replies.get(run, (None, None))
        return None if request is None else Note(request, reply if kept == round_index else None)

    def knows(self, head: str) -> bool:
        """See `FileStore`."""
        return head == self.newest.hash.hex()

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """See `FileStore`."""
        if (run, round_index) in self._requests:
            raise Refused("the round was released before")
        self._requests[run, round_index] = request
        self._replies[run] = round_index, reply
        self.newest = released(self.newest, run, round_index, request)


class FileStore:
    """An append-only log, held by one process and called by one thread at a time. After a write that failed
    everything is refused: what is then on the disk is not known.

    Entries without a key are the shuffler's identity (the first) and the random bits of each process's start.
    """

    def __init__(self, log: AppendLog, noted: HeadFile) -> None:
        self._log, self._noted, self._failed = log, noted, False
        with self._usable():
            self._log.append(None, secrets.token_hex(32).encode())
            self._noted.write(self.newest)
        self.start = self.newest.hash.hex()  # of the entry with which this process began

    @staticmethod
    def create(path: Path, identity: str) -> None:
        """An empty file for a shuffler of this public key; InputError if there is one, Refused if not."""
        if path.exists():
            raise InputError("state", str(path), "there are notes already; they are never begun anew")
        try:
            HeadFile.create(path, following(Head(0, bytes(32)), None, identity.encode()))
            AppendLog.create(path, identity.encode())
        except OSError as error:
            raise Refused("the shuffler's notes cannot be made there") from error

    @classmethod
    def open(cls, path: Path, identity: str) -> Self:
        """Hold the file, check the whole chain, and add this process's start to it.

        InputError if there is none, or it is of another shuffler: a holder of these keys may have released
        rounds that it does not know. Refused if another process holds it, or it was set back or damaged, or
        cannot be written.
        """
        if not path.is_file():
            hint = "there are no notes; they are made with --enrol, and only then"
            raise InputError("state", str(path), hint)
        with ExitStack() as held:
            log = AppendLog.open(path)
            held.callback(log.close)
            if log.read(1) != identity.encode():
                raise InputError("state", str(path), "notes of the shuffler whose keys are beside them")
            noted = HeadFile.open(path, log.newest, log.before)
            held.callback(noted.close)
            made = cls(log, noted)
            held.pop_all()
        return made

    @property
    def newest(self) -> Head:
        """The entry that the chain ends with."""
        return self._log.newest

    def close(self) -> None:
        """Let the file go."""
        self._failed = True
        self._log.close()
        self._noted.close()

    def find(self, run: str, round_index: int) -> Note | None:
        """The note of a round, if there is one."""
        with self._usable():
            entry, reply = self._log.find(_key(run, round_index)), self._log.kept(run)
        if entry is None:
            return None
        number, request = entry
        return Note(request.decode(), reply[1] if reply is not None and reply[0] == number else None)

    def knows(self, head: str) -> bool:
        """Whether the chain has an entry of this hash, hexadecimal."""
        with self._usable():
            return self._log.knows(bytes.fromhex(head))

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """Note for good that a round is released, before its reply leaves; Refused if it cannot be noted."""
        with self._usable():
            self._log.append(_key(run, round_index), request.encode(), (run, reply), KEPT_REPLIES)
            self._noted.write(self.newest)

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


Store = MemoryStore | FileStore
