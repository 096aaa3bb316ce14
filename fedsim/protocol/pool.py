"""Silos whose answers are added up: what each contributes to a sum, and how the sum is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum

from fedsim.common.errors import InputError
from fedsim.protocol.batch import Batch

MOST_RECORDS = 2**32
"""Records of all silos together up to which sums on a grid of 2^20 steps are exact in float64."""

MOST_SILOS = 2**20
"""Silos up to which the sum of their noise is exact in float64."""

MOST_WEIGHT = 1e100  # largest weight of a silo; sums stay finite


@dataclass(frozen=True, slots=True)
class Pool:
    """The silos of a sum, in the canonical order of their names; all of it is public.

    A round wants sum_i a_i m_i: m_i the mean of silo i over its K_i records and a_i = N p_i / M, M silos of N
    in the sum (`server.aggregate.coefficients`). Silos agree on one unit per batch kind, u = max_j p_j / K_j;
    silo i contributes w_i K_i m_i with w_i = (p_i / K_i) / u in (0, 1], and the sum is worth u N / M a piece.
    InputError for other values than those beside the fields.

    >>> from fedsim.protocol.batch import FULL
    >>> pool = Pool((10, 40), (0.5, 0.5), min_silos=2, honest_fraction=1.0)
    >>> pool.unit(FULL), pool.weight(0, FULL), pool.weight(1, FULL)
    (0.05, 1.0, 0.25)
    """

    sizes: tuple[int, ...]  # n_i >= 1
    weights: tuple[float, ...]  # of the silos in the objective, > 0; p_i is the weight over their sum
    min_silos: int  # M_min, how many silos a sum has at least, from 1 to N
    # gamma in (0, 1]: at least gamma M_min silos of every sum add their noise and keep it to themselves
    honest_fraction: float
    _kept: dict[Batch, tuple[float, tuple[float, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not 1 <= len(self.sizes) <= MOST_SILOS:
            raise InputError("pool.sizes", len(self.sizes), f"from 1 to {MOST_SILOS:,} silos")
        if min(self.sizes) < 1 or sum(self.sizes) > MOST_RECORDS:
            hint = f"one record each, together at most {MOST_RECORDS:,}"
            raise InputError("pool.sizes", sum(self.sizes), hint)
        if len(self.weights) != len(self.sizes):
            raise InputError("pool.weights", len(self.weights), f"one for each of {len(self.sizes)} silos")
        if wrong := [weight for weight in self.weights if not 0 < weight <= MOST_WEIGHT]:
            raise InputError("pool.weights", wrong[0], f"above 0, and at most {MOST_WEIGHT:g}")
        if not 1 <= self.min_silos <= len(self.sizes):
            hint = f"from 1 to the {len(self.sizes)} silos there are"
            raise InputError("pool.min_silos", self.min_silos, hint)
        if not 0 < self.honest_fraction <= 1:
            raise InputError("pool.honest_fraction", self.honest_fraction, "in (0, 1]")

    def unit(self, batch: Batch) -> float:
        """u = max_j p_j / K_j: what one record's term weighs in the weighted mean where it weighs most."""
        return self._of(batch)[0]

    def weight(self, position: int, batch: Batch) -> float:
        """w_i in (0, 1] of the silo at `position`."""
        return self._of(batch)[1][position]

    def heaviest(self, position: int, batches: Iterable[Batch]) -> float:
        """The largest w_i of the silo at `position` among these batch kinds; 0 where there is none."""
        return max((self.weight(position, batch) for batch in batches), default=0.0)

    def worth(self, batch: Batch, members: int) -> float:
        """u N / M: the sum of M silos' contributions times this is the round's weighted mean."""
        return self.unit(batch) * len(self.sizes) / members

    def _of(self, batch: Batch) -> tuple[float, tuple[float, ...]]:
        """u and every w_i; kept, since each silo of a round asks for its own."""
        if batch not in self._kept:
            whole = fsum(self.weights)
            rates = [w / whole / batch.size(n) for w, n in zip(self.weights, self.sizes, strict=True)]
            unit = max(rates)
            self._kept[batch] = unit, tuple(rate / unit for rate in rates)
        return self._kept[batch]


@dataclass(frozen=True)
class Share:
    """A silo's part in secure aggregation, all public; InputError for a place or clip without a price."""

    pool: Pool  # the silos whose answers are added up
    position: int  # the silo's place in it
    clip: float = 1.0  # of its records' terms, relative to a query's clip, in (0, 1]

    def __post_init__(self) -> None:
        if not 0 <= self.position < len(self.pool.sizes):
            raise InputError("share.position", self.position, f"a place among {len(self.pool.sizes)} silos")
        if not 0 < self.clip <= 1:
            raise InputError("share.clip", self.clip, "in (0, 1]")

    def weight(self, batch: Batch) -> float:
        """w_i of `Pool.weight`."""
        return self.pool.weight(self.position, batch)
