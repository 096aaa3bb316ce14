"""Bounds on plans and queries that a silo considers at all, for any budget."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import torch

from fedsim.common.errors import Refused
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.statistics import statistic

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_NUMBERS = 5_000  # an answer's fixed cost, in numbers

DIVERGED = "(if the iterates diverge, lower the step size)"
"""The end of what is said where a run most probably diverged."""


@dataclass(frozen=True)
class Limits:
    """Bounds on a plan and on the free parts of a query, checked before records are read."""

    max_rounds: int = 1_000_000
    max_dimension: int = 100_000_000
    max_queries_per_round: int = 1_000_000
    max_queries: int = 2_000_000
    max_planned_numbers: float = inf
    max_point: float = 1e6
    min_clip: float = 1e-6
    max_clip: float = 1e6
    max_noise_multiplier: float = 1e4
    min_noise_ratio: float = 1e-6
    max_noise_ratio: float = 1e6

    def check_plan(self, plan: Plan, dimension: int) -> None:
        """Refuse a plan that is too large, or that has an entry which prices nothing: of a statistic that the
        silo does not own, or with a noise ratio out of bounds.
        """
        if dimension > self.max_dimension:
            raise Refused(f"dimension {dimension} exceeds the silo's limit {self.max_dimension}")
        if len(plan.rounds) > self.max_rounds:
            raise Refused(f"the plan exceeds the silo's limit of {self.max_rounds} rounds")
        sizes: dict[int, int] = {}  # rounds are alike as a rule
        for asks in plan.rounds:
            if id(asks) not in sizes:
                sizes[id(asks)] = size = sum(len(ask.queries) for ask in asks)
                self.check_count(size, 0, dimension)
                for ask in asks:
                    self.check_ask(ask)
        self.check_count(0, sum(sizes[id(asks)] for asks in plan.rounds), dimension)

    def check_count(self, in_round: int, before: int, dimension: int) -> None:
        """Refuse more queries than the silo tries out, `in_round` in one and `before` in earlier rounds."""
        if in_round > self.max_queries_per_round:
            raise Refused(f"a round exceeds the silo's limit of {self.max_queries_per_round} queries")
        if in_round + before > self.max_queries:
            raise Refused(f"the plan exceeds the silo's limit of {self.max_queries} queries")
        if (in_round + before) * max(_LEAST_NUMBERS, dimension) > self.max_planned_numbers:
            raise Refused(
                f"the plan's answers hold more than the silo's limit of {self.max_planned_numbers} numbers"
            )

    def check_ask(self, ask: Ask) -> None:
        """Refuse a statistic the silo does not own, or a noise ratio that prices nothing; plain values."""
        if not ask.queries:
            raise Refused("an ask of the plan has no query")
        for query in ask.queries:
            self._check_shape(query)

    def _check_shape(self, shape: QueryShape) -> None:
        expected = len(statistic(shape.statistic).points)
        if shape.points != expected:
            raise Refused(f"{shape.statistic} takes {expected} point(s), got {shape.points}")
        if not self.min_noise_ratio <= shape.noise_ratio <= self.max_noise_ratio:
            bounds = f"[{self.min_noise_ratio:g}, {self.max_noise_ratio:g}]"
            raise Refused(f"noise_ratio {shape.noise_ratio} is not within {bounds}")

    def check_point(self, point: Tensor, dimension: int) -> None:
        """Refuse a point of another dimension, or with an entry that is not finite or too large."""
        if point.dim() == 0 or point.shape[-1] != dimension:
            raise Refused(f"a point has shape {tuple(point.shape)}, the problem has dimension {dimension}")
        lowest, highest = torch.aminmax(point)  # NaN if any entry is; six times faster than the norm
        largest = max(-float(lowest), float(highest))
        if not largest <= self.max_point:  # NaN compares false
            raise Refused(
                f"a point has an entry of size {largest:.3g}, the limit is {self.max_point:g} {DIVERGED}"
            )

    def check_clip(self, clip: float | Tensor) -> None:
        """Refuse a clip that is neither 0 nor within the bounds; NaN is refused too."""
        if isinstance(clip, float | int):
            allowed = clip == 0 or self.min_clip <= clip <= self.max_clip
        else:
            allowed = bool(torch.all((clip == 0) | ((clip >= self.min_clip) & (clip <= self.max_clip))))
        if not allowed:
            raise Refused(f"clip is neither 0 nor within [{self.min_clip:g}, {self.max_clip:g}]")


LIMITS = Limits()  # every simulated silo's
