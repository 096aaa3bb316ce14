"""Values as JSON has them: one text for equal ones, to compare and to hash settings by, and no infinity."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any


def canonical(value: Any) -> str:
    """JSON that is the same for equal values; 1 and 1.0 are equal numbers.

    >>> canonical({"b": 1.0, "a": (True, None)})
    '{"a":[true,null],"b":1}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def finite(value: float | None) -> float | None:
    """None for infinity, which JSON cannot say, and for None."""
    return value if value is not None and isfinite(value) else None
