"""Binomial noise: the centred sum of N fair bits, N even, on integers (proof: docs/shuffled-noise.md).

**Lemma.** Let p be the distribution of X = Bin(N, 1/2) - N/2, t an integer with |t| <= T, and W = {|x| <= w}
with y = (2 (w + T) + 1) / (N + 1) < 1. For every alpha > 1

    sum over W of p(x)^alpha p(x - t)^(1 - alpha) <= exp((alpha - 1) (2 alpha t^2 / (N + 1) + e |t|)),
    e = (2/3) y^3 / (1 - y^2).

That is a Gaussian of variance (N + 1) / 4 and a little more; outside W there is at most 2 exp(-2 w^2 / N).
"""

from __future__ import annotations

import math


def excess(bits: float, reach: float, tail: float) -> float:
    """Return e of the lemma, where W leaves out at most `tail`; infinity if there are too few bits.

    Falls as bits rise.

    Args:
        bits: N > 0.
        reach: T, the largest shift.
        tail: in (0, 1).
    """
    window = math.sqrt(bits * math.log(2 / tail) / 2)
    y = (2 * (window + reach) + 1) / (bits + 1)
    return 2 / 3 * y**3 / (1 - y * y) if y < 1 else math.inf
