"""Numbers of an algorithm that a theorem chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Derived:
    """What a theorem chooses for its algorithm.

    Args:
        theorem: its name and number.
        values: {field of the algorithm's section: value}.
        notes: {symbol: value} of what the theorem also sets and the algorithm has no field for.
    """

    theorem: str
    values: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)
