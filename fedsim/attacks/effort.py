"""How much an audit tries: what a fixed amount of work pays for, so that equal commands do equal work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedsim.attacks.estimate import Claim, is_gaussian, runs_needed
from fedsim.attacks.setting import Setting
from fedsim.problems.network import NeuralNetwork

_OVERHEAD = 5e6  # of one answer of the gate, in multiplications
_MEMBER = 2e4  # of one member's part in it
_ADMITTED = 1e6  # of making a silo's gate
_SEARCH, _WORST, _HONEST = 1.5e10, 5e10, 3e10
"""Multiplications for the exact search, the worst server's runs and the honest one's, all silos together."""
_LEAST_RUNS, _WORTH_IT, _MOST_HONEST = 25, 3000, 2000


class Search(NamedTuple):
    """Broadcasts of each kind of round, and records."""

    points: int
    records: int


@dataclass(frozen=True)
class Effort:
    """What each part of an audit does.

    Attributes:
        search: of every silo.
        worst: runs in each world, by silo.
        honest: runs in each world.
    """

    search: Search
    worst: dict[int, int]
    honest: int


def effort(setting: Setting, silos: Sequence[int], claims: dict[int, Claim], share: float = 1.0) -> Effort:
    """Enough runs to bound 0.9 of every claim, or as many as fit; `share` of that, and of the search."""
    every = range(len(setting.data))
    queries = [sum(len(ask.queries) for ask in asks) for asks in setting.resolved.trace.plan.rounds]
    one_round = sum(queries) / max(1, len(queries)) * sum(_work(setting, i) for i in every)
    answers = share * _SEARCH / (_OVERHEAD + one_round) / (len(silos) * len(setting.kinds))
    points = round(min(10.0, max(3.0, math.sqrt(answers / 4))))
    wanted = {i: max(_WORTH_IT, runs_needed(claims[i], is_gaussian(claims[i].census))) for i in silos}
    asked = {i: sum(queries[r] for r in setting.rounds(i)) for i in every}
    beside = setting.together - 1  # silos that answer with the one that is attacked
    costs = {
        i: 2 * (asked[i] * (_MEMBER + _work(setting, i)) * (1 + beside) + _ADMITTED * beside) for i in silos
    }
    fits = share * min(1.0, _WORST / sum(wanted[i] * costs[i] for i in silos))
    honest = 2 * sum(asked[i] * (4 * _MEMBER + 3 * _work(setting, i, alone=True)) for i in every)
    return Effort(
        Search(points, round(min(120.0, max(12.0, answers / points)))),
        {i: max(_LEAST_RUNS, math.ceil(fits * wanted[i])) for i in silos},
        max(_LEAST_RUNS, int(share * min(_MOST_HONEST, _HONEST / honest))),
    )


def _work(setting: Setting, silo: int, alone: bool = False) -> float:
    """Multiplications of one silo's clipped sum; a network's at points of its own takes a call of its own."""
    n, d = len(setting.data[silo][1]), setting.resolved.problem.dimension
    if isinstance(setting.resolved.problem, NeuralNetwork):
        return 6.0 * n * d + (3e6 if alone else 0)
    return 2.0 * n * d
