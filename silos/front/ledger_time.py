"""The end of a silo's life by its ledger's time, and that time beside this machine's clock, in words."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from fedsim.common.notices import apart, ending
from silos.vault.book import DAY, Book
from silos.vault.journal import AHEAD, SECOND, Clock

_OURS = "this machine's clock"


def life(book: Book, now: int) -> list[str]:
    """A line where the silo's life ends soon or has ended, by its ledger's time, microseconds since 1970."""
    ends, at = (datetime.fromtimestamp(each / SECOND, UTC) for each in (book.enrolment.expires, now))
    return ending("Lifetime", ends, at)


def away(now: int) -> list[str]:
    """A line where a time by the ledger, which receipts have, is not this machine's."""
    return apart("The ledger's time", now / SECOND - time.time(), _OURS)


def too_old(book: Book) -> list[str]:
    """A line where no silo starts, so far is the last entry behind this machine's clock."""
    if (since := time.time_ns() // 1000 - book.time) <= AHEAD:
        return []
    asks = "set that right or, if it is right, accept it: `fedsim ledger accept-time`"
    return [f"The ledger's last entry is {since // DAY:,} days behind {_OURS}: {asks}"]


def clocks(book: Book) -> list[str]:
    """Both, of a ledger that may be closed: the next start sets its time."""
    return [*away(Clock(book.time).now()), *too_old(book)]
