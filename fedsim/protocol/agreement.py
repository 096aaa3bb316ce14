"""What all silos of a sum must have been told alike, as one name for their run.

A silo's own share of the noise protects it only beside those of the others, so that each must know that the
others add as much. Reports are sealed for a run of this name (`fedsim.protocol.reports`): those of silos that
were told another plan, noise, pool or roster do not open beside this silo's, and no sum is made of both.
"""

from __future__ import annotations

import hashlib

from fedsim.common.canonical import canonical
from fedsim.protocol.messages import Offer
from fedsim.protocol.plan import Plan


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
