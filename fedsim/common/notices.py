"""Notices before something ends."""

from __future__ import annotations

from datetime import UTC, datetime

DAYS = 30  # before the end


def ending(what: str, end: datetime) -> list[str]:
    """A line from `DAYS` before the end on; UTC."""
    left = (end - datetime.now(UTC)).days
    if left >= DAYS:
        return []
    if left < 0:
        return [f"{what} has ended on {end:%Y-%m-%d}"]
    return [f"{what} ends on {end:%Y-%m-%d}, in {left} days"]
