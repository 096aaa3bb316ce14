"""The round loop: drives an algorithm's server half against silos that it does not trust with anything.

Deterministic given the aggregates and the public seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.contract import Algorithm, Public, PublicProblem
from fedsim.protocol.dryrun import server_rng
from server.aggregate import coefficients, combine
from server.participation import Schedule


class Link(Protocol):
    """The way to the silos; the only thing that differs between runtimes."""

    def answer(
        self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]
    ) -> Mapping[str, Tensor]:
        """The members' messages {name: (members, d)}, in the order of `members`."""
        ...


class Progress(NamedTuple):
    """The model that the server would return after `rounds` rounds, (d,)."""

    rounds: int
    answer: Tensor
    participants: int


def run(
    algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, link: Link, rounds: Schedule
) -> Iterator[Progress]:
    """Yield the answer before every round, and the final model last.

    Args:
        public: the federation's public numbers; p_i weight the messages of whoever answers.
        seed: public seed of the server half, the one that silos saw at admission.
        rounds: who takes part in each round.

    Raises:
        Refused: a silo refused a request.
    """
    start = problem.project(problem.start(seed).to(public.weights.dtype))
    coroutine = algorithm.server(start, problem, public, server_rng(seed))
    aggregate: dict[str, Tensor] | None = None
    r = 0
    while True:
        try:
            step = next(coroutine) if aggregate is None else coroutine.send(aggregate)
        except StopIteration as stop:
            yield Progress(r, stop.value, len(rounds[-1]) if rounds else 0)
            return
        members = rounds[r]
        yield Progress(r, step.answer, len(members))
        try:
            messages = link.answer(r, step.broadcast, members)
        except Refused as refusal:
            raise Refused(f"round {r}: {refusal}") from None
        aggregate = combine(messages, coefficients(public.weights, members, len(public.names)))
        r += 1
