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
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from fedsim.common.chain import BODIES, Layout, following, text
from fedsim.common.errors import InputError
from fedsim.common.head_file import Head
from fedsim.common.store import Store
from fedsim.secagg.reports import NO_START

KEPT_REPLIES = 8  # runs whose last reply is kept
_RUN, _ROUND, _REQUEST = (f"json_extract(payload, '$.{name}')" for name in ("run", "round", "request"))
NOTES = Layout(
    "the shuffler's notes",
    0x66647333,
    4,
    "end its runs with the version of fedsim that wrote it, then enrol anew: new keys, and a new roster",
    f"{BODIES} CREATE UNIQUE INDEX releases ON entries ({_RUN}, {_ROUND});",
    guarded=True,
)
_FIND = f"SELECT {_REQUEST}, body FROM entries LEFT JOIN bodies USING (seq) WHERE {_RUN} = ? AND {_ROUND} = ?"
_TRIM = "DELETE FROM bodies WHERE name NOT IN (SELECT name FROM bodies ORDER BY seq DESC LIMIT ?)"


class Note(NamedTuple):
    """That a round was released: the digest of its request, and the reply where it is still kept."""

    request: str
    reply: bytes | None


def released(newest: Head, run: str, round_index: int, request: str) -> Head:
    """The entry of a release that comes after another entry."""
    return following(newest, "released", _payload(run, round_index, request)).head


def _payload(run: str, round_index: int, request: str) -> str:
    return text({"run": run, "round": round_index, "request": request})


class FileStore(Store):
    """Notes on the disk, held by one process; the first names the shuffler's identity."""

    start: str  # of the entry with which this process began

    @staticmethod
    def create(path: Path, identity: str) -> None:
        """An empty file for a shuffler of this public key; InputError if there is one, Refused if not."""
        try:
            Store.make(path, NOTES, "enrolled", text({"identity": identity}))
        except FileExistsError:
            raise InputError(
                "state", str(path), "there are notes already; they are never begun anew"
            ) from None

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
            made = cls.hold(path, NOTES)
            held.callback(made.close)
            if made.query("SELECT payload FROM entries WHERE seq = 1") != (text({"identity": identity}),):
                raise InputError("state", str(path), "notes of the shuffler whose keys are beside them")
            made.start = made.append("started", text({"nonce": secrets.token_hex(32)})).hash.hex()
            held.pop_all()
        return made

    def find(self, run: str, round_index: int) -> Note | None:
        """The note of a round, if there is one."""
        row = self.query(_FIND, (run, round_index))
        return None if row is None else Note(*row)

    def note(self, run: str, round_index: int, request: str, reply: bytes) -> None:
        """Note for good that a round is released, before its reply leaves; Refused if it cannot be noted."""
        payload, trim = _payload(run, round_index, request), (_TRIM, (KEPT_REPLIES,))
        self.append("released", payload, trim, bodies={run: reply})


class MemoryStore(FileStore):
    """For a simulation: it is gone with its process, and so are the keys."""

    def __init__(self) -> None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(NOTES.schema)
        super().__init__(Path(":memory:"), NOTES, connection, ExitStack())
        self.start = NO_START
        self.append("enrolled", "{}")
