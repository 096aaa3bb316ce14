"""Bounds on plans and queries that a silo considers at all, for any budget."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import torch

from fedsim.common.errors import Refused
from fedsim.protocol.groups import Cells
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.statistics import COSTED_GRADIENT, shapes_of, size_of, statistic

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.protocol.query import Query

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
    # whether plans protect labels alone, of a silo whose whole account does; None: any
    label_dp: bool | None = None

    def check_plan(self, plan: Plan, dimension: int, features: int) -> None:
        """Refuse a plan that is too large, is of another unit than the silo's account, or has an entry that
        prices nothing: of a statistic that the silo does not own, or with a noise ratio out of bounds. The
        model has d = `dimension` numbers, a record so many `features`, the constant one included.
        """
        self._check_dimension(dimension)
        units = {statistic(query.statistic).unit for query in plan.queries}
        if len(units) > 1:
            raise Refused("the plan protects records in some queries, and labels alone in others")
        if units == {"label"} and self.label_dp is False:
            hint = "the silo's policy has no label_dp: true"
            raise Refused(f"the plan protects labels alone, and not features; {hint}")
        if units == {"record"} and self.label_dp:
            account = "the silo's account is of labels alone (label_dp: true)"
            raise Refused(f"{account}, and the plan is of records")
        if len(plan.rounds) > self.max_rounds:
            raise Refused(f"the plan exceeds the silo's limit of {self.max_rounds} rounds")
        sizes: dict[int, int] = {}  # rounds are alike as a rule
        largest = dimension
        for asks in plan.rounds:
            if id(asks) not in sizes:
                sizes[id(asks)] = size = sum(len(ask.queries) for ask in asks)
                self.check_count(size, 0, dimension)
                for ask in asks:
                    largest = max(largest, self.check_ask(ask, dimension, features))
        self.check_count(0, sum(sizes[id(asks)] for asks in plan.rounds), largest)

    def check_count(self, in_round: int, before: int, dimension: int) -> None:
        """Refuse more queries than the silo tries out, `in_round` in one and `before` in earlier rounds."""
        if in_round > self.max_queries_per_round:
            raise Refused(f"a round exceeds the silo's limit of {self.max_queries_per_round} queries")
        if in_round + before > self.max_queries:
            raise Refused(f"the plan exceeds the silo's limit of {self.max_queries} queries")
        if (in_round + before) * max(_LEAST_NUMBERS, dimension) > self.max_planned_numbers:
            most = f"the silo's limit of {self.max_planned_numbers} numbers"
            raise Refused(f"the plan's answers hold more than {most}")

    def _check_dimension(self, dimension: int, what: str = "dimension") -> None:
        if dimension > self.max_dimension:
            raise Refused(f"{what} {dimension} exceeds the silo's limit {self.max_dimension}")

    def check_ask(self, ask: Ask, dimension: int, features: int) -> int:
        """Refuse a statistic the silo does not own, options that it cannot use, or a noise ratio that prices
        nothing; plain values. Returns how many numbers the largest answer counts as.
        """
        if not ask.queries:
            raise Refused("an ask of the plan has no query")
        for query in ask.queries:
            known = statistic(query.statistic)
            most = known.most_points or known.points
            if not known.points <= query.points <= most:
                raise Refused(f"{query.statistic} takes {known.points} point(s), got {query.points}")
            if query.transform not in range(features + 1) or (query.transform and dimension % features):
                limit = f"a whole number from 0 to {features}, and 0 where the model is not linear"
                raise Refused(f"{query.statistic}: transform {query.transform} must be {limit}")
            known.check(shapes_of(query, dimension, features))
            self._check_dimension(size_of(query, dimension, features), f"{query.statistic} of dimension")
            if not self.min_noise_ratio <= query.noise_ratio <= self.max_noise_ratio:
                bounds = f"[{self.min_noise_ratio:g}, {self.max_noise_ratio:g}]"
                raise Refused(f"noise_ratio {query.noise_ratio} is not within {bounds}")
            if ask.batch.random and not known.sampled:
                hint = "it has no price for such batches; use full or fresh ones"
                raise Refused(f"{query.statistic} on {ask.batch}: {hint}")
        sizes = [max(_LEAST_NUMBERS, size_of(query, dimension, features)) for query in ask.queries]
        work = (statistic(query.statistic).work(query) for query in ask.queries)
        return max(size * each for size, each in zip(sizes, work, strict=True))

    def check_point(self, point: Tensor) -> None:
        """Refuse a point, or a transform, with an entry that is not finite or too large."""
        lowest, highest = torch.aminmax(point)  # NaN if any entry is; six times faster than the norm
        largest = max(-float(lowest), float(highest))
        if not largest <= self.max_point:  # NaN compares false
            most = f"the limit is {self.max_point:g} {DIVERGED}"
            raise Refused(f"a point has an entry of size {largest:.3g}, {most}")

    def check_clip(self, clip: float | Tensor, name: str) -> None:
        """Refuse a clip that is neither 0 nor within the bounds, or not 1 for a statistic whose terms are
        bounded by themselves; NaN is refused too.
        """
        if not statistic(name).clipped and not (isinstance(clip, float) and clip == 1):
            raise Refused(f"{name} has terms that are bounded by themselves: its clip must be 1.0")
        if isinstance(clip, float | int):
            allowed = clip == 0 or self.min_clip <= clip <= self.max_clip
        else:
            allowed = bool(torch.all((clip == 0) | ((clip >= self.min_clip) & (clip <= self.max_clip))))
        if not allowed:
            raise Refused(f"clip is neither 0 nor within [{self.min_clip:g}, {self.max_clip:g}]")


def check_transform(transform: Tensor | None, features: int, dtype: torch.dtype) -> None:
    """Refuse a transform of records of other features, or of another type."""
    if transform is not None and (transform.shape[-1] != features or transform.dtype != dtype):
        given = f"{tuple(transform.shape)} {transform.dtype}"
        raise Refused(f"a transform is {given}; it must be (k, features), here (k, {features}) {dtype}")


def check_table(query: Query) -> None:
    """Refuse costs by group beyond the reach that the plan states for them."""
    if query.statistic == COSTED_GRADIENT.name:  # its table
        reach, stated = Cells.of(query.options).reach(query.points[1]), query.options[3]
        if not reach <= stated:
            raise Refused(f"a table of costs has reach {reach:.6g}, and the plan states {stated:.6g}")


LIMITS = Limits()  # every simulated silo's
