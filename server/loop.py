"""The round loop: drives an algorithm's server half against silos that it does not trust with anything.

Deterministic given the aggregates and the public seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.contract import Algorithm, Public, PublicProblem
from fedsim.protocol.dryrun import server_rng
from fedsim.protocol.links import Link
from server.participation import Schedule

Aggregate = Callable[[Mapping[str, Tensor], Public, Sequence[int]], Mapping[str, Tensor]]
"""(messages {name: (members, d)}, public numbers, members) to what the algorithm is sent, {name: (d,)}."""


class Progress(NamedTuple):
    """The model that the server would return after `rounds` rounds, (d,)."""

    rounds: int
    answer: Tensor
    participants: int


def run(
    algorithm: Algorithm,
    problem: PublicProblem,
    public: Public,
    seed: int,
    link: Link,
    rounds: Schedule,
    aggregate: Aggregate,
) -> Iterator[Progress]:
    """Yield the answer before every round, and the final model last.

    Args:
        public: the federation's public numbers.
        seed: public seed of the server half, the one that silos saw at admission.
        rounds: who takes part in each round.
        aggregate: combines the messages of whoever answers (`server.aggregate.weighted`).

    Raises:
        Refused: a silo refused a request.
    """
    start = problem.project(problem.start(seed).to(public.weights.dtype))
    coroutine = algorithm.server(start, problem, public, server_rng(seed))
    combined: Mapping[str, Tensor] | None = None
    r = 0
    while True:
        try:
            step = next(coroutine) if combined is None else coroutine.send(combined)
        except StopIteration as stop:
            yield Progress(r, stop.value, len(rounds[-1]) if rounds else 0)
            return
        members = rounds[r]
        yield Progress(r, step.answer, len(members))
        try:
            messages = link.answer(r, step.broadcast, members)
        except Refused as refusal:
            raise Refused(f"round {r}: {refusal}") from None
        combined = aggregate(messages, public, members)
        r += 1
