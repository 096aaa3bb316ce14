"""What a run will release, known before round 0 and independent of the data.

A plan is a table of rounds; a round is the asks of one silo in it; an ask is one draw of the batch
with the queries that it answers. It is all that a privacy accountant needs to know. `Terms`, `Admitted` and
`Statement` are what a silo states in public about a plan: before admission, at admission and after the run.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.statistics import GRADIENT, Extent, size_of, statistic
from fedsim.protocol.statistics import QueryShape as QueryShape
from fedsim.protocol.unit import RECORD, Unit

if TYPE_CHECKING:  # with secure aggregation
    from fedsim.protocol.pool import Share


Arrays = tuple[tuple[str, int], ...]
"""(name, size) of the arrays of a broadcast or message, sorted; each is (size,)."""
Part = Literal["training", "holdout"]
"""Which of a silo's records; no record is in both parts. Frames leave the first one unsaid."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The queries that are answered on one draw of the batch."""

    batch: Batch
    queries: tuple[QueryShape, ...]

    @property
    def weight(self) -> float:
        """Sensitivity over noise of the joint release, in units of 1 / base multiplier.

        A query with noise ratio c is a Gaussian release of mu = 1 / (z c), z the base multiplier;
        releases on one draw of the batch add mu^2, so mu = weight / z, weight^2 = sum 1 / c^2.

        >>> from fedsim.protocol.batch import FULL
        >>> gradient, difference = QueryShape("gradient", 1, 1.0), QueryShape("gradient_difference", 2, 0.75)
        >>> round(Ask(FULL, (gradient, difference)).weight, 4)
        1.6667
        """
        return math.sqrt(sum(query.noise_ratio**-2 for query in self.queries))


@dataclass(frozen=True, slots=True)
class Release:
    """One release as the accountant sees it: mu = weight / z on a batch drawn by `batch`."""

    batch: Batch
    weight: float
    removed: bool = False  # whether a neighbour's batch lacks the unit; only sampled batches tell
    drawn: bool = False  # whether it is a choice by the exponential mechanism, which costs less than that mu

    @property
    def kind(self) -> str:
        """Its sampler; "choice" where it is one."""
        return "choice" if self.drawn else self.batch.sampler


Census = tuple[tuple[Release, int], ...]
"""How often each distinct release happens; hashable, in canonical order."""


@dataclass(frozen=True)
class Plan:
    """The asks of each round, addressed by round, and whose data they protect."""

    rounds: tuple[tuple[Ask, ...], ...]
    unit: Unit = RECORD

    @property
    def sampled(self) -> bool:
        """Whether a batch leaves records out at random."""
        return any(ask.batch.random for ask in self.asks)

    @property
    def queries(self) -> set[QueryShape]:
        """The distinct queries."""
        return {query for ask in self.asks for query in ask.queries}

    @cached_property
    def asks(self) -> set[Ask]:
        """The distinct asks; rounds that are alike are one object as a rule."""
        return {ask for asks in {id(asks): asks for asks in self.rounds}.values() for ask in asks}

    @property
    def protects_labels_alone(self) -> bool:
        """Whether it has a statistic that moves by more than its spread if a record's features change."""
        return any(statistic(query.statistic).unit == "label" for query in self.queries)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of every round's queries and of a unit other than the record, hexadecimal."""
        found = hashlib.sha256()
        for asks in self.rounds:
            found.update(f"{asks!r}\n".encode())
        if self.unit != RECORD:
            found.update(f"{self.unit!r}\n".encode())
        return found.hexdigest()

    def batches(self, rounds: Iterable[int]) -> set[Batch]:
        """The batch kinds of `rounds`."""
        return {ask.batch for asks in {self.rounds[r] for r in rounds} for ask in asks}

    def census(self, rounds: Iterable[int] | None = None) -> Census:
        """Count the distinct releases of `rounds` (all of them by default)."""
        chosen = self.rounds if rounds is None else [self.rounds[r] for r in rounds]
        counts = Counter(release for asks in chosen for ask in asks for release in self._releases(ask))
        return tuple(sorted(counts.items(), key=repr))

    def _releases(self, ask: Ask) -> Iterator[Release]:
        """One of the ask's noisy sums, and its choices; all together on batches of which one counts."""
        drawn = [query for query in ask.queries if ask.batch == FULL and statistic(query.statistic).drawn]
        sums = replace(ask, queries=tuple(query for query in ask.queries if query not in drawn))
        if sums.queries or not drawn:
            yield Release(ask.batch, sums.weight, self.unit.removed_from(ask.batch))
        for query in drawn:
            yield Release(ask.batch, 1 / query.noise_ratio, drawn=True)

    def spread(self, query: QueryShape) -> float:
        """How far a unit moves the sum of a query's terms, over the clip."""
        return self.unit.spread(query.statistic, query.options)

    def extent(self, dimension: int, features: int) -> Extent:
        """What noise on a grid is priced by, for a model of d numbers; of a gradient without queries."""
        sizes = [size_of(query, dimension, features) for query in self.queries] or [dimension]
        spreads = [self.spread(query) for query in self.queries] or [self.unit.spread(GRADIENT.name)]
        return Extent(max(sizes), min(sizes), min(spreads))

    def num_queries(self, rounds: Iterable[int]) -> int:
        """How many noisy answers `rounds` hold."""
        return sum(len(ask.queries) for r in rounds for ask in self.rounds[r])


@dataclass(frozen=True, slots=True)
class Terms:
    """What one silo brings to an admission."""

    name: str  # the silo
    n: int  # its number of units
    epsilon: float  # its budget; infinity with mechanism `none`, where nothing is guaranteed
    delta: float  # its delta
    rounds: Sequence[int]  # the rounds it takes part in, ascending; others are refused
    # noise that is given; by default the silo takes the smallest within its budget. Either way it
    # refuses a plan whose true cost exceeds epsilon. Secure aggregation has one for all silos, relative
    # to the largest sensitivity that a silo may have
    noise_multiplier: float | None = None
    share: Share | None = None  # the silo's part in secure aggregation; None where it answers for itself
    public: bool = False  # its records are: neither clip nor noise, nothing is guaranteed or spent


@dataclass(frozen=True, slots=True)
class Admitted:
    """A silo's answer to a plan that it accepts.

    Its whole transcript is (epsilon_guaranteed, delta)-DP with respect to replacing one of its n
    records (thesis Definition 139), whatever the server and the other silos do; see
    `fedsim.privacy.cost` for the arithmetic. `noise_multiplier` is sigma over the silo's own sensitivity. In
    secure aggregation the guarantee is the mechanism's: of what the server sees.
    """

    terms: Terms
    noise_multiplier: float
    epsilon_guaranteed: float
    releases: int


@dataclass(frozen=True)
class Statement:
    """One silo's account of a run.

    `epsilon_spent` prices the rounds paid for; it is a guarantee only if participation did not depend
    on answers. `digests` are the broadcasts that `rounds` were paid for, as hexadecimal SHA-256.
    """

    admitted: Admitted
    epsilon_spent: float
    rounds: list[int]
    digests: list[str]
