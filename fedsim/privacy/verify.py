"""A plan priced again by dp-accounting: its discretisation and its composition, our pairs.

Slower than `cost` (tens of milliseconds to seconds a plan) and independent of `loss`; `fedsim privacy
--verify` prints both numbers. They differ by the rounding of two grids, below 1e-3 of epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedsim.privacy.cost import compose
from fedsim.privacy.loss import orders
from fedsim.privacy.pair import Pair
from fedsim.privacy.pairs import profile
from fedsim.protocol.plan import Census

_NEGLIGIBLE = 1e-6  # share of delta that truncating the losses may cost


def epsilon(
    census: Census, n: int, noise_multiplier: float, delta: float, interval: float | None = None
) -> float:
    """Return dp-accounting's epsilon of a plan; arguments as `cost.epsilon`, and the `interval` by which the
    privacy loss is discretised, by default finer the more releases there are.
    """
    composition = compose(census, n)
    if composition.silent:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return composed(composition.pairs(noise_multiplier), delta, interval)


def composed(pairs: Sequence[tuple[Pair, int]], delta: float, interval: float | None = None) -> float:
    """Return dp-accounting's epsilon of composed dominating pairs: the larger one of the two orders."""
    return max(_one_order(each, delta, interval) for each in orders(pairs))


def _one_order(pairs: Sequence[tuple[Pair, int]], delta: float, interval: float | None) -> float:
    from dp_accounting.pld import pld_pmf

    copies = sum(count for _, count in pairs)
    step = interval or min(1e-3, 1e-2 / math.sqrt(copies))
    total = None
    for pair, count in pairs:
        cells = math.ceil(pair.reach(_NEGLIGIBLE * delta / copies) / step)
        deltas = profile(pair, step * np.arange(-cells, cells + 1))
        part = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -cells, cells, deltas)
        part = part.self_compose(count)
        total = part if total is None else pld_pmf.compose_pmfs(total, part)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))
