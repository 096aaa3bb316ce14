"""The statistics that a silo releases: functions of one record each, whose clipped terms are summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fedsim.common.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor

Clip = TypeVar("Clip", float, "Tensor")


@dataclass(frozen=True)
class Statistic:
    """A per-record function that silos own: where it is evaluated, what it gives and how far it moves.

    >>> GRADIENT.sensitivity(1.5)
    3.0
    """

    name: str
    points: tuple[str, ...]  # the block of each point: "w" holds d numbers
    answer: str  # the block of a term, and so of the answer
    spread: (
        float  # the largest L2 distance of two records' terms, over the clip: 2 where they may be opposite
    )

    def sensitivity(self, clip: Clip) -> Clip:
        """L2 sensitivity of the sum of terms of norm <= clip under replace-one."""
        return self.spread * clip

    def size(self, dimension: int) -> int:
        """How many numbers an answer holds, d being the model's."""
        return {"w": dimension}[self.answer]


GRADIENT = Statistic("gradient", ("w",), "w", 2.0)
GRADIENT_DIFFERENCE = Statistic("gradient_difference", ("w", "w"), "w", 2.0)  # first point minus second

STATISTICS = {each.name: each for each in (GRADIENT, GRADIENT_DIFFERENCE)}


def statistic(name: str) -> Statistic:
    """The statistic of this name; Refused if silos own none."""
    if name not in STATISTICS:
        raise Refused(f"statistic {name[:40]!r} is not one of {', '.join(STATISTICS)}")
    return STATISTICS[name]
