"""The newest entry of a chain, in a small file beside it, so that a chain that has lost its end is noticed.

SQLite ends a write-ahead log, without a word, at the first frame whose checksum is wrong: a damaged bit or a
missing log sets the database back. So the newest entry's number and hash are kept here too. A writer commits
an entry, writes it here, and lets its answer leave only then. Two slots, a page apart, hold the last two
entries: a write that a loss of power tears leaves the other slot whole.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Self

from fedsim.common.errors import Refused

_MAGIC = b"fedhead1"
_PAGE = 4096
_SIZE = len(_MAGIC) + 8 + 32  # before the checksum, SHA-256


class Head(NamedTuple):
    """An entry's number, from 1, and its hash, 32 bytes."""

    seq: int
    hash: bytes


def head_path(chain: Path) -> Path:
    """The file that belongs to a chain's, beside it: NAME-head."""
    place = chain.resolve()
    return place.with_name(f"{place.name}-head")


class HeadFile:
    """The file, open to write; entries are written in order, one at a time."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @staticmethod
    def create(chain: Path, head: Head) -> None:
        """Make it for a chain of one entry, on the disk; the chain's own file must come after it. Refused if
        there is one of a longer chain, which is lost then: what it spent must not be forgotten; OSError if it
        cannot be written.
        """
        place = head_path(chain)
        if place.exists() and _newest(place)[0].seq > head.seq:
            raise Refused(f"{place.name} names entries of a chain that is gone; it is never begun anew")
        handle = os.open(place, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            os.pwrite(handle, _slot(Head(0, bytes(32))).ljust(2 * _PAGE, b"\0"), 0)
            os.pwrite(handle, _slot(head), head.seq % 2 * _PAGE)
            os.fsync(handle)
        finally:
            os.close(handle)

    @classmethod
    def open(cls, chain: Path, newest: Head, before: bytes) -> Self:
        """Check that a chain is whole to its end, `newest` after an entry of hash `before`; open to write.
        Refused if the chain's end is neither the entry that was noted nor the one after it, the file is
        missing, or damaged so that this cannot be known.
        """
        head, whole = _newest(head_path(chain))
        ahead = head == Head(newest.seq - 1, before)  # a kill came between commit and note
        if not ahead and not (whole and head == newest):  # a torn slot was the one of the entry after
            raise _lost(chain)
        try:
            opened = cls(os.open(head_path(chain), os.O_RDWR | os.O_CLOEXEC))
            if ahead:
                opened.write(newest)
        except OSError as error:
            raise Refused(f"{head_path(chain).name} cannot be written") from error
        return opened

    @staticmethod
    def read(chain: Path) -> Head:
        """The newest entry that a chain must contain; read it before the chain, which may grow meanwhile.
        Refused if there is none, or it is damaged.
        """
        return _newest(head_path(chain))[0]

    def write(self, head: Head) -> None:
        """Note an entry; it is on the disk when this returns. OSError if it cannot be written."""
        record = _slot(head)
        if os.pwrite(self._handle, record, head.seq % 2 * _PAGE) != len(record):
            raise OSError("the head was not written as a whole")
        os.fdatasync(self._handle)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._handle)


def check_contains(chain: Path, head: Head, found: bytes | None) -> None:
    """Refuse a chain that has not the noted entry at its place; `found` is the hash that it has there."""
    if found != head.hash:
        raise _lost(chain)


def _lost(chain: Path) -> Refused:
    name = chain.name
    return Refused(f"{name} was set back or damaged: its last entries are not those that {name}-head names")


def _slot(head: Head) -> bytes:
    body = _MAGIC + head.seq.to_bytes(8) + head.hash
    return body + hashlib.sha256(body).digest()


def _newest(place: Path) -> tuple[Head, bool]:
    """The newest entry of the slots that are whole, and whether both are."""
    try:
        data = place.read_bytes()
    except OSError as error:
        raise Refused(f"{place.name} is missing or cannot be read: copies and backups need it too") from error
    slots = [data[start : start + _SIZE + 32] for start in (0, _PAGE)]
    heads = [Head(int.from_bytes(slot[8:16]), slot[16:_SIZE]) for slot in slots]
    good = [head for head, slot in zip(heads, slots, strict=True) if slot == _slot(head)]
    if not good:
        raise Refused(f"{place.name} is damaged: whether entries were lost cannot be known")
    return max(good), len(good) == 2
