"""What a silo method asks its records for: a statistic by its name, at public points, on a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.statistics import QueryShape

if TYPE_CHECKING:
    from torch import Tensor

    Scalar = float | Tensor
else:
    Scalar = float
"""A number of a scenario, which validates a float. Where runs that differ in it are computed together it is a
tensor (runs, 1), which broadcasts over d: `step_size` and `clip_norm` of algorithms are so.
"""


@dataclass(frozen=True)
class Query:
    """A noisy mean of a per-record function that the silo owns.

    The answer is (1/K) sum over the batch of clip(term), plus N(0, sigma^2 I) with
    sigma = noise_ratio z spread clip / K, z the silo's base noise multiplier. Shape (silos, d), or of another
    size by its statistic.
    """

    # name of the per-record function (`fedsim.protocol.statistics`), such as "gradient" (one point) or
    # "gradient_difference" (two points, first minus second); never code
    statistic: str
    points: tuple[Tensor, ...]  # where to evaluate it, each (d,) or (silos, d), made of public values
    # L2 bound on one record's term, a number or (silos, 1), made of public values; 1 for a statistic whose
    # terms are bounded by themselves
    clip: Scalar
    batch: Batch = FULL  # which records; every query of one `ask` must name the same batch
    noise_ratio: float = 1.0  # this release's noise relative to the plan's base multiplier
    options: tuple[float, ...] = ()  # public numbers that the statistic takes
    # a public matrix (k, features), of a linear model: a record x counts as its product with x, so that a
    # model has k features. Terms are clipped after it, so that any matrix will do
    transform: Tensor | None = None
    # how many records of a unit count, where it asks for that: public, free as the clip
    h: float | None = None

    @cached_property
    def shape(self) -> QueryShape:
        """The part that sets its cost."""
        kept = 0 if self.transform is None else len(self.transform)
        return QueryShape(self.statistic, len(self.points), float(self.noise_ratio), self.options, kept)
