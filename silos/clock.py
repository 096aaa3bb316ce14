"""A ledger's time, which no clock can turn back."""

from __future__ import annotations

import time

SECOND = 1_000_000
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
