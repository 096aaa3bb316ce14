"""A record's group alone: what a change of it moves and costs, and a mechanism that protects nothing else.

Where the attribute is no feature, two data sets that differ in one record's group, to none or from none
included, have the same features and labels. Then a clipped gradient does not move, a `joint` moves by at most
sqrt 2, and a term of `costed_gradient` by at most |x| R / 4 for one score, sqrt 2 times that for several
(`Cells.reach`), and never by more than 2 clip: clipping does not lengthen distances. (A. Lowy 2023,
Definition 72 and Theorem 75, has the distance of one table.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from fedsim.privacy.mechanism import About
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.plan import Census, Plan, QueryShape
from fedsim.protocol.statistics import COSTED_GRADIENT, statistic

if TYPE_CHECKING:
    from torch import Tensor


class AttributeGaussian(SiloGaussian):
    """Noise for a record's group alone, in simulation only: features and labels are published.

    A release's noise is that of `gaussian` with the distance that a change of the group can make in place of
    spread x clip. For comparison with published work, which protects no more.
    """

    name: ClassVar[str] = "attribute_gaussian"
    simulated: ClassVar[bool] = True
    of_groups: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "for each {silo}, the transcript of all messages it sends is (epsilon_guaranteed, delta)-DP with "
        "respect to {change}; features and labels are published"
    )
    notices: ClassVar[tuple[str, ...]] = (
        "features and labels are published: epsilon is for a record's group alone",
    )

    def moved(
        self, query: QueryShape, spread: float, clip: float | Tensor, about: Callable[[], About]
    ) -> float | Tensor:
        """See `Mechanism`; features are published, lengths too."""
        most = clip if isinstance(clip, int | float) else float(clip.max())
        known = about()
        return distance(query, known.reach, most, known.longest, known.outputs) / spread


def distance(query: QueryShape, reach: float, clip: float, norm: float, outputs: int) -> float:
    """How far apart two terms of a record are at most that differ in its group alone: `reach` R of the table
    of costs, or a bound on it; a term's `clip`; `norm` the largest |x|, infinity for a network; and so many
    `outputs`, a record's scores.
    """
    if not statistic(query.statistic).by_group:
        return 0.0
    most = statistic(query.statistic).spread_of(query.options) * clip
    if query.statistic != COSTED_GRADIENT.name or not max(reach, norm) < math.inf:
        return most
    return min(most, reach * norm / 4 * (1 if outputs == 1 else math.sqrt(2)))


def census(plan: Plan, rounds: Sequence[int], clip: float, norm: float, outputs: int) -> Census:
    """Those releases of `rounds` whose noise a change of one record's group tells of, at its own distance.

    **Guarantee.** A mechanism's price of it, at the run's noise multipliers, bounds the transcript with
    respect to changing one record's group, where the attribute is no feature.
    """

    def seen(query: QueryShape) -> list[QueryShape]:
        known = statistic(query.statistic)
        bound, reach = clip if known.clipped else 1.0, query.options[3] if known.by_group else 0.0
        own = distance(query, reach, bound, norm, outputs)
        ratio = query.noise_ratio * plan.spread(query) * bound
        return [replace(query, noise_ratio=ratio / own)] if own > 0 else []

    asks = {a: replace(a, queries=tuple(chain.from_iterable(map(seen, a.queries)))) for a in plan.asks}
    return Plan(tuple(tuple(asks[ask] for ask in plan.rounds[r]) for r in rounds), plan.unit).census()


NAMED = AttributeGaussian()
