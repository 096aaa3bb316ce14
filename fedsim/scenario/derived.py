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
        predicted: what the theorem expects with the noise that is really added, constants set to one: V, the
            root mean squared error of a round's mean gradient, and a bound. Empty for a theorem's own noise.
    """

    theorem: str
    values: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)
