"""Binomial noise: the centred sum of N fair bits, N even, on integers (proof: docs/shuffled-noise.md).

**Lemma.** Let p be the distribution of X = Bin(N, 1/2) - N/2, t an integer with |t| <= T, and W = {|x| <= w}
with y = (2 (w + T) + 1) / (N + 1) < 1. For every alpha > 1

    sum over W of p(x)^alpha p(x - t)^(1 - alpha) <= exp((alpha - 1) (2 alpha t^2 / (N + 1) + e |t|)),
    e = (2/3) y^3 / (1 - y^2).

That is a Gaussian of variance (N + 1) / 4 and a little more; outside W there is at most 2 exp(-2 w^2 / N).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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


def cpsgd_epsilon(bits: int, dimension: int, l2: float, linf: float, delta: float) -> float:
    """Return the published epsilon of one release, to compare with; infinity outside its range.

    Args:
        bits: N of fair bits a coordinate.
        dimension: d.
        l2: sensitivity in integer steps, by Euclidean norm.
        linf: the same by the largest coordinate; by the sum of them it is at most sqrt(d) l2.
        delta: in (0, 1).

    Source: Agarwal et al., cpSGD (NeurIPS 2018), Theorem 1, at p = 1/2 and step 1.
    """
    if bits < 4 * max(23 * math.log(10 * dimension / delta), 2 * linf):
        return math.inf
    l1 = math.sqrt(dimension) * l2
    close = 2 * l2 * math.sqrt(2 * math.log(1.25 / delta) / bits)
    c, b, e = 7 * math.sqrt(2) / 4, 1 / 3, 2 / 3
    spread = 4 * (l2 * c * math.sqrt(math.log(10 / delta)) + l1 * b) / ((1 - delta / 10) * bits)
    tail = 2 / 3 * math.log(1.25 / delta) + e * math.log(20 * dimension / delta) * math.log(10 / delta)
    return close + spread + 4 * linf * tail / bits


@dataclass(frozen=True, slots=True)
class Published:
    """Parameters of the vector sum as published: steps g, bits b a user and coordinate, probability p."""

    steps: int
    bits: int
    probability: float

    def deviation(self, users: int) -> float:
        """Standard deviation of the sum's noise, in units of the clip: a step is 2 clip / g.

        The steps span the shifted range [0, 2 clip] (thesis, Algorithm 17 as corrected).
        """
        spread = math.sqrt(users * self.bits * self.probability * (1 - self.probability))
        return 2 * spread / self.steps


def published(users: int, dimension: int, epsilon: float, delta: float) -> Published:
    """Return what the existence proof of the vector sum names; hundreds of times the noise that is needed.

    Source: Cheu, Joseph, Mao and Peng, ICLR 2022 (arXiv 2106.09805), on which the thesis's Lemma 136 rests.
    """
    steps = math.ceil(max(2 * math.sqrt(users), dimension, 4))
    log = math.log(4 * (dimension**2 + 1) / delta)
    return Published(steps, math.ceil(24e4 * steps**2 * log**2 / (epsilon**2 * users)), 0.25)
