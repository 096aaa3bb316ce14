"""A silo's ledger, opened by one process: a store of entries (`fedsim.common.store`), and their book.

An event is an entry, on the disk with everything that it describes, and in the head file, before the call
that reports it returns; what is known of it in memory follows. A write that fails, for whatever reason, ends
the object.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from fedsim.common import installed
from fedsim.common.chain import Entry, errors, text
from fedsim.common.errors import InputError, Refused
from fedsim.common.store import Statement, Store
from silos.vault.book import DAY, LEDGER, Book, Enrolment, Run, check_beside, check_exists

SECOND = 1_000_000
AHEAD = 30 * DAY  # that a start may come after the last entry
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first also counts sleep


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


class Journal(Store):
    """An open ledger; one process holds it, and its methods may be called from any thread."""

    book: Book
    _clock: Clock

    @staticmethod
    def create(path: Path, enrolment: Enrolment) -> None:
        """Enrol, for good: a new ledger, in a directory that exists, which is there as a whole or not at all.
        InputError if there is one already, Refused if it cannot be written.
        """
        try:
            Store.make(path, LEDGER, "enrolled", text(enrolment.tree()), Clock(0).now())
        except FileExistsError:
            raise InputError("ledger", str(path), "there is one already: a silo enrols once") from None

    @classmethod
    def open(cls, path: Path, notes: Mapping[str, Any] | None = None, until: int = 0) -> Self:
        """Read and check the whole ledger, and note that this process began, with plain values: its `notices`
        are lines for everyone who reads the ledger or a receipt, such as that noise is seeded. InputError if
        there is none; Refused if another process holds it, it was altered, damaged or cut, cannot be written,
        or the wall clock is more than `AHEAD` after the last entry: nothing is written at a time that may
        be wrong, since no later one takes it back. An operator who knows better names a time, `until` which
        (microseconds since 1970) it is right, and that is noted in place of the start.
        """
        check_exists(path)
        book = Book()
        with errors(LEDGER, path), ExitStack() as held:
            ledger = cls.hold(path, LEDGER, book.add)
            held.callback(ledger.close)
            check_beside(book, ledger.connection)
            ledger.book, ledger._clock = book, Clock(book.time)
            if (now := ledger.now()) > max(book.time + AHEAD, until):
                raise Refused(_ahead(book.time, now))
            ledger.note("accepted" if until else "started", {**(notes or {}), "version": installed.version()})
            held.pop_all()
        return ledger

    @property
    def enrolment(self) -> Enrolment:
        """Values that were fixed when the silo enrolled."""
        return self.book.enrolment

    @property
    def head(self) -> str:
        """Hash of the last entry, hexadecimal."""
        return self.book.head

    def now(self) -> int:
        """The ledger's time, microseconds since 1970 (`Clock`)."""
        return self._clock.now()

    def note(self, kind: str, payload: Mapping[str, Any], *statements: Statement) -> Entry:
        """Append an entry and what belongs to it in one durable transaction; Refused if they cannot be."""
        with self.lock:
            written = text(payload)
            return self.append(kind, written, *statements, time=self.now(), then=self.book.add)

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


def _ahead(last: int, now: int) -> str:
    then, wall = (f"{datetime.fromtimestamp(each / SECOND, UTC):%Y-%m-%d}" for each in (last, now))
    why = f"{(now - last) // DAY:,} days after the ledger's last entry ({then}): nothing was written"
    return f"this machine's clock says {wall}, {why}; set it right or, if it is, `fedsim ledger accept-time`"


def end_of(day: date) -> int:
    """The end of a day in UTC, microseconds since 1970."""
    after = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    return int(after.timestamp()) * SECOND
