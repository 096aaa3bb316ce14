"""Silos that are attacked: their records, a gate over them, and a tap at every answer of that gate.

A message is made of answers; a tap hears each by itself, and can keep a silo method on a given path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import GAUSSIAN
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, Asker, Memory, Message, PublicProblem, Query, Wrapper
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Arrays, Plan, Terms
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD, Unit
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import MemoryLedger
from fedsim.simulation.side_by_side import SideBySide
from fedsim.testing.attacks.canaries import num_units, whose
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out
from silos.vault.owners import Owners

_DELTA = 1e-5  # of prices that are not used: the plan was priced before the audit


def cohort(
    resolved: Resolved,
    algorithm: Algorithm,
    plan: Plan,
    data: Sequence[Rows],
    noise: Sequence[float] | None = None,
    streams: Sequence[str] | None = None,
    *,
    terms: Sequence[Terms] | None = None,
    copies: int | None = None,
    mechanism: Mechanism = GAUSSIAN,
    broadcasts: Sequence[Arrays] | None = None,
) -> Served:
    """A gate over silos at given noise multipliers and without a budget.

    Args:
        noise: z of each; 0, the default, clips and adds nothing.
        streams: whose batches and noise each draws: equal streams draw alike, as all do by default.
        terms: of each, whose number of units, rounds and share count; by default how many units there are,
            one at least, all rounds and no share.
        copies: runs side by side on the same records; then broadcasts may be (members, d), and member
            c len(data) + s is silo s in copy c.
        broadcasts: the arrays of each round; one of d numbers by default.
    """
    problem, dtype, repeats = resolved.gate_problem, resolved.dtype, copies or 1
    every = range(len(plan.rounds))
    terms = terms or [Terms("", max(1, num_units(own, plan.unit)), inf, _DELTA, every) for own in data]
    given = zip(terms, noise or [0.0] * len(data), strict=True)
    taken = [
        Terms(f"{copy}/{place}", own.n, inf, _DELTA, own.rounds, z, own.share)
        for copy, (place, (own, z)) in product(range(repeats), enumerate(given))
    ]
    entropy = randomness(resolved.scenario.seed, list(streams or [""] * len(data)) * repeats)
    # which records count is known to the attacker, and alike in all worlds
    choices = [np.random.default_rng(resolved.scenario.seed) for _ in data]
    owners = Owners(plan.unit, [whose(own) for own in data], choices)
    if copies is None:
        laid = lay_out(data, problem, dtype, owners)
    else:
        laid = SideBySide(data, problem, dtype, copies, owners)
    ledgers = [MemoryLedger() for _ in taken]
    return Served(
        Gate(laid, problem, plan, taken, mechanism, entropy, ledgers, LIMITS, dtype, broadcasts), algorithm
    )


def randomness(seed: int, streams: Sequence[str]) -> SeededEntropy:
    """The audit's own random numbers, of a key that no run has."""
    return SeededEntropy(seed, 0, streams, ["audit"] * len(streams))


def sensitivity(query: Query, unit: Unit = RECORD) -> Tensor:
    """L2 sensitivity of a query's sum to one unit, float64, in the shape of its clip."""
    return unit.spread(query.statistic, query.options) * torch.as_tensor(query.clip, dtype=torch.float64)


@dataclass(frozen=True)
class Heard:
    """One ask: the silo method's queries and the gate's answers, each (members, d)."""

    queries: tuple[Query, ...]
    answers: tuple[Tensor, ...]


Tell = Callable[[int, Heard], tuple[Tensor, ...]]
"""(number of the ask in its round, the answers heard) to the answers that the silo method gets instead."""


@dataclass
class Tap:
    """Listens to every ask, and may change it."""

    full: bool = False  # ask for every record, whatever batch the silo method names
    tell: Tell | None = None  # keeps the silo method on a path that does not depend on the answers heard
    greedy: bool = False  # at the end of a round ask once more than the silo method does
    heard: list[Heard] = field(default_factory=list)
    overheard: list[Heard] = field(default_factory=list)

    def take(self) -> list[Heard]:
        """The asks heard since the last call."""
        heard, self.heard = self.heard, []
        return heard

    def listen(self, ask: Asker, queries: tuple[Query, ...]) -> tuple[Tensor, ...]:
        """Put the queries to the gate."""
        if self.full:
            queries = tuple(replace(query, batch=FULL) for query in queries)
        heard = Heard(queries, _answers(ask, queries))
        self.heard.append(heard)
        return heard.answers if self.tell is None else self.tell(len(self.heard) - 1, heard)

    def end(self, ask: Asker) -> None:
        """The silo method has what it asked for; `overheard` is what the gate should have refused."""
        if self.greedy and self.heard:
            queries = self.heard[-1].queries
            with suppress(Exception):
                self.overheard.append(Heard(queries, _answers(ask, queries)))


def _answers(ask: Asker, queries: tuple[Query, ...]) -> tuple[Tensor, ...]:
    return ask(*queries) if len(queries) > 1 else (ask(queries[0]),)


@dataclass(frozen=True)
class Wiretap(Wrapper):
    """An algorithm with a tap between its `silo` and the gate."""

    inner: Algorithm
    tap: Tap
    linear: ClassVar[bool] = False

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """The algorithm's own message, overheard."""

        def tapped(*queries: Query) -> Tensor | tuple[Tensor, ...]:
            answers = self.tap.listen(ask, queries)
            return answers if len(queries) > 1 else answers[0]

        message = self.inner.silo(problem, broadcast, cast(Asker, tapped), memory)
        self.tap.end(ask)
        return message
