"""Dates and times of day, which are no numbers: read as texts or as types of Parquet."""

from __future__ import annotations

import re
from typing import Any

MEND = (
    "make a number of them before, such as an age in years or days since a fixed public day, "
    "or leave the column out"
)
_DAY = r"(?:\d{4}(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)(?:\d{4}|\d{2}))"
_TIME = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP][mM])?( ?(Z|[-+]\d{2}:?\d{2}))?"
_WRITTEN = re.compile(rf"({_DAY}([ T]{_TIME})?|{_TIME})")


def is_date(text: str | None) -> bool:
    """Whether a text is a day, a time of day, or both, in figures.

    >>> [is_date(text) for text in ("2024-02-30", "3/4/98", "1.12.2020 23:59", "2020-01-01T10:00Z")]
    [True, True, True, True]
    >>> [is_date(text) for text in ("2024", "1.5", "3-4", "1-2/3", "")]
    [False, False, False, False, False]
    """
    return bool(_WRITTEN.fullmatch(text or ""))


def is_temporal(kind: Any) -> bool:
    """Whether a column of this Arrow type holds dates, times or durations."""
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind))
