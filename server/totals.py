"""From sums over silos to the round's message: the silo half runs once, on the summed answer.

A silo half whose message is affine in its answers, f(x) = A x + b with public A and b, is applied to
X = sum_i a_i x_i in place of each x_i, with the server's coefficients a_i = N p_i / M_r (`server.aggregate`):
sum_i a_i f(x_i) = f(X) + (sum_i a_i - 1) f(0). What is asked must not depend on the answers, and f must be
affine: both are checked in every round, the latter by f(X / 2) = (f(0) + f(X)) / 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.mechanisms.mechanism import SumMechanism
from fedsim.protocol.contract import Algorithm, Asker, PublicProblem, Query
from fedsim.protocol.plain import CohortMemory, PlainQuery, plain_arrays, plain_queries
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.pool import Pool

_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Of a message that is affine in answers, over its largest entry."""


@dataclass(frozen=True)
class Totals:
    """Reads the sums of one run.

    Args:
        algorithm: linear.
        problem: its public part.
        plan: what silos were asked.
        mechanism: says what a unit of a contribution is worth.
        pool: whose contributions are added.
        dtype: of parameters and messages.
    """

    algorithm: Algorithm
    problem: PublicProblem
    plan: Plan
    mechanism: SumMechanism
    pool: Pool
    dtype: torch.dtype

    def message(
        self,
        round_index: int,
        broadcast: Mapping[str, Tensor],
        totals: Mapping[str, Tensor],
        members: Sequence[int],
    ) -> dict[str, Tensor]:
        """The silos' messages, weighed and added, {name: (d,)}.

        Args:
            round_index: which round of the plan.
            broadcast: what it was asked with, {name: (d,)}.
            totals: by the number of the query in the round, sums of contributions, (d,).
            members: positions of the silos that are in the sums.

        Raises:
            Refused: the silo half is not what it must be.
        """
        asks = self.plan.rounds[round_index]
        values = [totals[str(number)] for number in range(len(totals))]
        quiet, told = self._run(asks, broadcast, None, len(members))
        summed, asked = self._run(asks, broadcast, iter(values), len(members))
        if not _same(asked, told):
            raise Refused("what the silo half asks depends on answers, which sums over silos do not allow")
        half, _ = self._run(asks, broadcast, (value / 2 for value in values), len(members))
        allowed = _ROUNDING[self.dtype]
        if not all(_between(half[name], quiet[name], value, allowed) for name, value in summed.items()):
            raise Refused("the silo half's message is not affine in its answers, as sums over silos need it")
        present = torch.tensor(self.pool.weights, dtype=torch.float64)
        present = present[list(members)].sum() / present.sum() * (len(self.pool.sizes) / len(members))
        rest = float(present) - 1
        return {name: value + rest * quiet[name] for name, value in summed.items()}

    def _run(
        self,
        asks: Sequence[Ask],
        broadcast: Mapping[str, Tensor],
        values: Iterator[Tensor] | None,
        members: int,
    ) -> tuple[dict[str, Tensor], list[PlainQuery]]:
        """The silo half's message on sums (None: zeros), and what it asked."""
        asker = _OnSums(self, asks, values, members)
        memory = CohortMemory(1, self.problem.dimension, self.dtype)
        message = self.algorithm.silo(self.problem, broadcast, cast(Asker, asker), memory)
        if asker.left or memory:
            raise Refused("the silo half asks less than its plan, or keeps memory between rounds")
        flat = plain_arrays(message, "a message")
        return {name: value.reshape(-1) for name, value in flat.items()}, asker.queries


class _OnSums:
    """`ask` on sums: a planned query's answer is its total times what a unit of it is worth."""

    def __init__(
        self, run: Totals, asks: Sequence[Ask], values: Iterator[Tensor] | None, members: int
    ) -> None:
        self._run, self._asks, self._values, self._members = run, list(asks), values, members
        self.queries: list[PlainQuery] = []

    @property
    def left(self) -> bool:
        """Whether asks of the plan were not made."""
        return bool(self._asks)

    def __call__(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        asked, taken = plain_queries(queries)
        if not self._asks or asked != self._asks.pop(0):
            raise Refused(f"the silo half asks {asked}, which its plan does not have there")
        self.queries += taken
        answers = tuple(self._answer(query, asked) for query in taken)
        return answers if len(answers) > 1 else answers[0]

    def _answer(self, query: PlainQuery, asked: Ask) -> Tensor:
        run = self._run
        if self._values is None:
            return torch.zeros(1, run.problem.dimension, dtype=run.dtype)
        worth = run.mechanism.step(float(query.clip)) * run.pool.worth(asked.batch, self._members)
        return (next(self._values).double() * worth).to(run.dtype).unsqueeze(0)


def _between(half: Tensor, none: Tensor, whole: Tensor, rounding: float) -> bool:
    """Whether `half` is the mean of the others, but for rounding."""
    size = float(torch.maximum(none.abs().amax(), whole.abs().amax()))
    return bool(((none + whole) / 2 - half).abs().amax() <= rounding * size)


def _same(first: Sequence[PlainQuery], second: Sequence[PlainQuery]) -> bool:
    """Whether points and clips are equal; statistics, batches and ratios are the plan's."""
    return len(first) == len(second) and all(
        float(a.clip) == float(b.clip)
        and all(torch.equal(p, q) for p, q in zip(a.points, b.points, strict=True))
        for a, b in zip(first, second, strict=True)
    )
