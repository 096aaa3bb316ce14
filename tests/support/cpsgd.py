"""What another paper states of binomial noise, to compare with."""

import math


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
