"""Combines silos' messages, or the sums of secure aggregation, by public numbers fixed beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.contract import Algorithm, Asker, Public, PublicProblem, Query
from fedsim.protocol.copies import CohortMemory, copied_arrays, copied_queries
from fedsim.protocol.passes import features_of
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.statistics import size_of

if TYPE_CHECKING:
    from fedsim.privacy.sum_mechanism import SumMechanism
    from fedsim.protocol.pool import Pool


def weighted(messages: Mapping[str, Tensor], public: Public, members: Sequence[int]) -> dict[str, Tensor]:
    """The members' messages combined with `coefficients` of the public weights, {name: (d,)}."""
    return combine(messages, coefficients(public.weights, members, len(public.names)))


def coefficients(weights: Tensor, members: Sequence[int], num_silos: int) -> Tensor:
    """N p_i / M_r for each member i of a round of M_r silos (thesis B.1.9 with f replaced by N p_i f).

    Then sum_i a_i m_i is unbiased for sum_j p_j m_j, over all silos j, wherever the set is uniformly random
    given its size, whatever the law of the size is: a silo is then in a set of M_r with probability M_r / N.
    Where silos come with unequal probability it is biased towards those that come more often. Where all
    take part, a_i = p_i. The a_i sum to 1 in expectation, not in a round: what is combined must be something
    that may be scaled (a gradient, a step), never a model.

    Args:
        weights: of all silos, (num_silos,), to be scaled to p_i, which sum to 1.
        members: positions of the silos that take part, ascending; the result is (members,), in this order.
    """
    present = weights if len(members) == num_silos else weights[list(members)]
    return present / weights.sum() * (num_silos / len(members))


def combine(messages: Mapping[str, Tensor], coefficient: Tensor) -> dict[str, Tensor]:
    """sum_i a_i m_i, {name: (d,)}, over rows {name: (silos, d)} in canonical order; a_i are (silos,)."""
    return {name: coefficient.to(rows.dtype) @ rows for name, rows in messages.items()}


def summed(messages: Mapping[str, Tensor], public: Public, members: Sequence[int]) -> dict[str, Tensor]:
    """The one row of messages that came weighed and added (`Totals`), {name: (d,)}."""
    return {name: rows.squeeze(0) for name, rows in messages.items()}


_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Of a message that is affine in answers, over its largest entry."""


@dataclass(frozen=True)
class Totals:
    """The message of a round of secure aggregation: the silo method runs once, on the summed answers.

    A silo method whose message is affine in its answers, f(x) = A x + b with public A and b, is applied to
    X = sum_i a_i x_i in place of each x_i, with the coefficients a_i = N p_i / M_r (`coefficients`):
    sum_i a_i f(x_i) = f(X) + (sum_i a_i - 1) f(0). What is asked must not depend on the answers, and f must
    be affine: both are checked in every round, the latter by f(X / 2) = (f(0) + f(X)) / 2.
    """

    algorithm: Algorithm  # linear
    problem: PublicProblem  # its public part
    plan: Plan  # what silos were asked
    mechanism: SumMechanism  # says what a unit of a contribution is worth
    pool: Pool  # whose contributions are added
    dtype: torch.dtype  # of parameters and messages

    def message(
        self,
        round_index: int,
        broadcast: Mapping[str, Tensor],
        totals: Mapping[str, Tensor],
        members: Sequence[int],
    ) -> dict[str, Tensor]:
        """The silos' messages, weighed and added, {name: (d,)}. Refused if the silo method is not what it
        must be.

        Args:
            broadcast: what it was asked with, {name: (d,)}.
            totals: by the number of the query in the round, sums of contributions, (d,).
            members: positions of the silos that are in the sums.
        """
        asks = self.plan.rounds[round_index]
        values = [totals[str(number)] for number in range(len(totals))]
        quiet, told = self._run(asks, broadcast, None, len(members))
        summed, asked = self._run(asks, broadcast, iter(values), len(members))
        if not _same(asked, told):
            why = "what the silo method asks depends on answers: secure aggregation does not allow it"
            raise Refused(why)
        half, _ = self._run(asks, broadcast, (value / 2 for value in values), len(members))
        allowed = _ROUNDING[self.dtype]
        if not all(_between(half[name], quiet[name], value, allowed) for name, value in summed.items()):
            why = "the silo method's message is not affine in its answers: secure aggregation needs that"
            raise Refused(why)
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
    ) -> tuple[dict[str, Tensor], list[Query]]:
        """The silo method's message on sums (None: zeros), and what it asked."""
        asker = _OnSums(self, asks, values, members)
        memory = CohortMemory(1, self.problem.dimension, self.dtype)
        message = self.algorithm.silo(self.problem, broadcast, cast(Asker, asker), memory)
        if asker.asks or memory:
            raise Refused("the silo method asks less than its plan, or keeps memory between rounds")
        flat = copied_arrays(message, "a message")
        return {name: value.reshape(-1) for name, value in flat.items()}, asker.queries


class _OnSums:
    """`ask` on sums: a planned query's answer is its total times what a unit of it is worth."""

    def __init__(
        self, run: Totals, asks: Sequence[Ask], values: Iterator[Tensor] | None, members: int
    ) -> None:
        self._run, self._values, self._members = run, values, members
        self.asks = list(asks)  # that are to come
        self.queries: list[Query] = []

    def __call__(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        asked, taken = copied_queries(queries)
        if not self.asks or asked != self.asks.pop(0):
            raise Refused(f"the silo method asks {asked}, which its plan does not have there")
        self.queries += taken
        answers = tuple(self._answer(query, asked) for query in taken)
        return answers if len(answers) > 1 else answers[0]

    def _answer(self, query: Query, asked: Ask) -> Tensor:
        run = self._run
        if self._values is None:
            size = size_of(query.shape, run.problem.dimension, features_of(run.problem))
            return torch.zeros(1, size, dtype=run.dtype)
        worth = run.mechanism.step(float(query.clip)) * run.pool.worth(asked.batch, self._members)
        return (next(self._values).double() * worth).to(run.dtype).unsqueeze(0)


def _between(half: Tensor, none: Tensor, whole: Tensor, rounding: float) -> bool:
    """Whether `half` is the mean of the others, but for rounding."""
    size = float(torch.maximum(none.abs().amax(), whole.abs().amax()))
    return bool(((none + whole) / 2 - half).abs().amax() <= rounding * size)


def _same(first: Sequence[Query], second: Sequence[Query]) -> bool:
    """Whether points and clips are equal; statistics, batches and ratios are the plan's."""
    return len(first) == len(second) and all(
        float(a.clip) == float(b.clip)
        and all(torch.equal(p, q) for p, q in zip(a.points, b.points, strict=True))
        for a, b in zip(first, second, strict=True)
    )
