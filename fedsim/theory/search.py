"""Where an error that falls with R meets one that does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fedsim.scenario.resolve import LIMITS

Errors = Callable[[int], tuple[float, float]]
"""R to two errors: of optimisation, which falls with R, and of noise."""


def smallest(holds: Callable[[int], bool], least: int = 1) -> int:
    """Return the smallest R >= least at which a condition holds that stays true from its first R on.

    At most as many rounds as any silo admits, whether it holds there or not.
    """
    low, high = least - 1, least
    while not holds(high):
        if high >= LIMITS.max_rounds:
            return LIMITS.max_rounds
        low, high = high, min(2 * high, LIMITS.max_rounds)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def balanced(errors: Errors) -> int:
    """Return the R at which the larger error is least, where the second one never falls."""
    R = smallest(lambda R: errors(R)[0] <= errors(R)[1])
    return min(max(1, R - 1), R, key=lambda R: (max(errors(R)), R))


def best(candidates: Iterable[int], errors: Errors) -> int:
    """Return the candidate whose larger error is least, the first one of equals."""
    return min(candidates, key=lambda R: (max(errors(R)), R))


def disjoint(n: int) -> list[int]:
    """How many disjoint batches of K records n have, for every K: no other number of them is worth trying."""
    root = math.isqrt(n)
    return sorted({n // K for K in range(1, root + 1)} | set(range(1, root + 1)))
