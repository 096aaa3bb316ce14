"""What the reports of a run's rounds are for, as silos and server each find it out.

A silo's own share of the noise protects it only beside those of the others, so that each must know that the
others add as much. Reports are sealed for a run of the name that all silos of a sum give it
(`fedsim.secagg.reports`): those of silos that were told another plan, noise, pool or roster do not open
beside this silo's, and no sum is made of both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from fedsim.common.errors import Refused
from fedsim.common.serialise import canonical
from fedsim.privacy.mechanism import SumMechanism
from fedsim.protocol.plan import Plan
from fedsim.secagg.reports import Form, Occasion
from fedsim.wire.messages import Offer


@dataclass(frozen=True)
class Occasions:
    """The occasions of a run of sums.

    Args:
        offer: with `pooled`, to any of the run's silos.
        plan: what it comes to.
        mechanism: of the sums.
        dimension: d, of an answer.
    """

    offer: Offer
    plan: Plan
    mechanism: SumMechanism
    dimension: int

    @cached_property
    def run(self) -> str:
        """How reports call the run."""
        return agreement(self.offer, self.plan)

    def of(self, round_index: int, start: str) -> Occasion:
        """The occasion of a round; `start` is that of the shuffler's mark.

        Raises:
            Refused: the offer is not of sums.
        """
        if self.offer.pooled is None:
            raise Refused("the run is not one of sums over silos")
        return Occasion(self.run, round_index, self.offer.pooled.roster, self.form(round_index), start)

    def form(self, round_index: int) -> Form:
        """What the numbers of a round's reports are."""
        scales = aggregators_scales(
            self.mechanism, self.plan, round_index, self.offer.noise_multiplier or 0.0
        )
        return Form(self.mechanism.transport, self.dimension, scales)


def aggregators_scales(mechanism: SumMechanism, plan: Plan, round_index: int, z: float) -> tuple[float, ...]:
    """Of the noise that each aggregator adds to each query's sum, in steps; 0 where silos add theirs.

    Args:
        mechanism: of the sums.
        plan: what silos are asked.
        round_index: which round of it.
        z: the multiplier that is common to all silos.
    """
    queries = [query for ask in plan.rounds[round_index] for query in ask.queries]
    return tuple(mechanism.aggregators_noise(query.noise_ratio, z) for query in queries)


def agreement(offer: Offer, plan: Plan) -> str:
    """SHA-256 of all that is in an offer but what is the silo's own alone, and of the plan that it comes to.

    The plan is what each silo's own installation makes of the offer: noise ratios are in it alone.

    Returns:
        64 hexadecimal digits.
    """
    told = offer.model_dump(mode="json", exclude={"silo", "rounds", "epsilon", "delta", "head"})
    if offer.pooled is not None:
        told["pooled"] = offer.pooled.model_dump(mode="json", exclude={"clip"})
    return hashlib.sha256(b"fedsim agreement 1\n" + canonical([told, plan.digest]).encode()).hexdigest()
