"""What a silo is willing to consider at all, whatever the budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.protocol.contract import Query
from fedsim.protocol.errors import Refused
from fedsim.protocol.plan import Plan

POINTS = {"gradient": 1, "gradient_difference": 2}
"""Every statistic and the number of points at which it is evaluated."""


@dataclass(frozen=True)
class Limits:
    """Bounds on a plan and on the free parts of a query, checked before records are read."""

    max_rounds: int = 1_000_000
    max_dimension: int = 100_000_000
    max_queries_per_round: int = 1_000_000
    max_point: float = 1e6
    min_clip: float = 1e-6
    max_clip: float = 1e6
    max_noise_multiplier: float = 1e4
    min_noise_ratio: float = 1e-6
    max_noise_ratio: float = 1e6

    def check_plan(self, plan: Plan, dimension: int) -> None:
        """Refuse a plan that is too large, whoever made it."""
        widest = max((plan.num_queries([r]) for r in range(len(plan.rounds))), default=0)
        if dimension > self.max_dimension:
            raise Refused(f"dimension {dimension} exceeds the silo's limit {self.max_dimension}")
        if len(plan.rounds) > self.max_rounds:
            raise Refused(f"the plan exceeds the silo's limit of {self.max_rounds} rounds")
        if widest > self.max_queries_per_round:
            raise Refused(f"a round exceeds the silo's limit of {self.max_queries_per_round} queries")

    def check_shape(self, query: Query) -> None:
        """Refuse a statistic the silo does not own, or a noise ratio that prices nothing."""
        expected = POINTS.get(query.statistic)
        if expected is None:
            raise Refused(f"statistic {query.statistic!r} is not one of {', '.join(POINTS)}")
        if len(query.points) != expected:
            raise Refused(f"{query.statistic} takes {expected} point(s), got {len(query.points)}")
        if not self.min_noise_ratio <= query.noise_ratio <= self.max_noise_ratio:
            bounds = f"[{self.min_noise_ratio:g}, {self.max_noise_ratio:g}]"
            raise Refused(f"noise_ratio {query.noise_ratio} is not within {bounds}")

    def check_point(self, point: Tensor, dimension: int) -> None:
        """Refuse a point of another dimension, or with an entry that is not finite or too large."""
        if point.dim() == 0 or point.shape[-1] != dimension:
            raise Refused(f"a point has shape {tuple(point.shape)}, the problem has dimension {dimension}")
        largest = float(point.abs().max())  # NaN if any entry is; five times faster than the norm
        if not largest <= self.max_point:  # NaN compares false
            raise Refused(
                f"a point has an entry of size {largest:.3g}, the limit is {self.max_point:g} "
                "(if the iterates diverge, lower the step size)"
            )

    def check_clip(self, clip: float | Tensor) -> None:
        """Refuse a clip that is neither 0 nor within the bounds; NaN is refused too."""
        if isinstance(clip, float | int):
            allowed = clip == 0 or self.min_clip <= clip <= self.max_clip
        else:
            allowed = bool(torch.all((clip == 0) | ((clip >= self.min_clip) & (clip <= self.max_clip))))
        if not allowed:
            raise Refused(f"clip is neither 0 nor within [{self.min_clip:g}, {self.max_clip:g}]")
