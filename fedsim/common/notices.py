"""Notices before something ends, and of clocks that are apart."""

from __future__ import annotations

from datetime import UTC, datetime

DAYS = 30  # before the end


def ending(what: str, end: datetime, now: datetime | None = None) -> list[str]:
    """A line from `DAYS` before the end on; UTC."""
    left = (end - (now or datetime.now(UTC))).days
    if left >= DAYS:
        return []
    if left < 0:
        return [f"{what} has ended on {end:%Y-%m-%d}"]
    return [f"{what} ends on {end:%Y-%m-%d}, in {left} days"]


def apart(what: str, ahead: float, other: str) -> list[str]:
    """A line where a clock is a day or more away from another; `ahead` in seconds."""
    days, where = int(abs(ahead) // 86_400), "ahead of" if ahead > 0 else "behind"
    return [f"{what} is {days:,} day{'s' * (days > 1)} {where} {other}"] if days else []
