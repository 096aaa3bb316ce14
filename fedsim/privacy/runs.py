"""What several plans cost together, when the same records answer one after another.

**Guarantee.** `compose_runs(censuses, n).epsilon(z, delta)` bounds the joint transcript of a silo that
answers every census on the same n records with base noise multiplier z and fresh noise, batches and
permutations for each; later plans may depend on earlier answers. It is adaptive composition (thesis Lemma
10) of what `cost.compose` finds for each plan alone: the pairs of sampled releases are listed together, and
the Full and Fresh parts, one Gaussian release of mu_r = weight_r / z for plan r, add as mu^2 = sum_r
mu_r^2.

A record meets one Fresh batch of *each* plan, so that Fresh parts add over plans though not within one:
pooling the censuses and composing once would take the largest only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedsim.privacy.cost import Composition, compose
from fedsim.privacy.pairs import SampledPair
from fedsim.protocol.plan import Census


def compose_runs(censuses: Sequence[Census], n: int) -> Composition:
    """Return the composition of plans that n records answer in turn; an equal plan counts each time.

    Raises:
        Refused: the Fresh batches of one plan hold more than n records.

    >>> from fedsim.protocol.batch import Fresh
    >>> from fedsim.protocol.plan import Release
    >>> one_pass = ((Release(Fresh(0.5), 1.0), 2),)  # in each run a record is in one batch
    >>> compose_runs([one_pass] * 4, n=10).weight
    2.0
    """
    weight, sampled = 0.0, Counter[SampledPair]()
    for census, times in Counter(censuses).items():
        one = compose(census, n)
        weight = math.hypot(weight, one.weight * math.sqrt(times))
        for pair, count in one.sampled:
            sampled[pair] += count * times
    return Composition(weight, tuple(sampled.items()))
