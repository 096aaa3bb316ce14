"""The dry run: what an algorithm would ask for, found without data.

The coroutine runs twice, against zeros and against random answers (and against two different
assumptions about the noise). Its queries must not depend on what it is told, since the plan is
priced before round 0; two different plans are an error that names the round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.contract import Algorithm, Combined, Public, PublicProblem, Query, Round
from fedsim.protocol.limits import Limits
from fedsim.protocol.memory import CohortMemory
from fedsim.protocol.plain import PlainQuery, plain_arrays, plain_queries
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.seeds import generator

Answerer = Callable[[PlainQuery], Tensor]


@dataclass(frozen=True)
class Trace:
    """The plan; for each round whether the participating silos are kept from the round before, and the names
    of the arrays in a silo's message, sorted.
    """

    plan: Plan
    holds: tuple[bool, ...]
    messages: tuple[tuple[str, ...], ...]


def dry_run(algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, limits: Limits) -> Trace:
    """Record the plan of `algorithm` for one silo.

    Raises:
        Refused: a round differs between the two runs, or passes one of `limits`.
    """
    rng = generator(seed, "dry run")

    def zeros(query: PlainQuery) -> Tensor:
        return torch.zeros(1, problem.dimension, dtype=query.points[0].dtype)

    def noise(query: PlainQuery) -> Tensor:
        drawn = torch.as_tensor(rng.standard_normal((1, problem.dimension))).to(query.points[0])
        return drawn * (query.clip / math.sqrt(problem.dimension))

    quiet = _trace(algorithm, problem, _with_noise(public, 1.0), seed, limits, zeros)
    loud = _trace(algorithm, problem, _with_noise(public, 7.0), seed, limits, noise)
    _check_equal(quiet, loud)
    return replace(quiet, plan=limits.check_plan(quiet.plan, problem.dimension))


def _with_noise(public: Public, multiplier: float) -> Public:
    return replace(public, noise_multipliers=torch.full_like(public.noise_multipliers, multiplier))


def _check_equal(first: Trace, second: Trace) -> None:
    pairs = zip(first.plan.rounds, second.plan.rounds, strict=False)
    different = (r for r, (a, b) in enumerate(pairs) if a != b or first.holds[r] != second.holds[r])
    at = next(different, None)
    if at is None and len(first.holds) != len(second.holds):
        at = min(len(first.holds), len(second.holds))
    if at is not None:
        raise Refused(f"round {at}: the queries depend on the answers, so the plan cannot be priced")


def _trace(
    algorithm: Algorithm,
    problem: PublicProblem,
    public: Public,
    seed: int,
    limits: Limits,
    answer: Answerer,
) -> Trace:
    start = problem.project(problem.start(seed).to(public.weights.dtype))
    coroutine = algorithm.server(start, problem, public, server_rng(seed))
    memory = CohortMemory(1, problem.dimension, start.dtype)
    rounds: list[tuple[Ask, ...]] = []
    known: dict[tuple[Ask, ...], tuple[Ask, ...]] = {}
    holds: list[bool] = []
    messages: list[tuple[str, ...]] = []
    step = _advance(coroutine.__next__)
    while step is not None:
        if len(rounds) >= limits.max_rounds:
            raise Refused(f"the plan exceeds the silo's limit of {limits.max_rounds} rounds")
        recorder = _Recorder(limits, answer)
        reply = algorithm.silo(problem, step.broadcast, recorder, memory)  # type: ignore[arg-type]
        asks = tuple(recorder.asks)
        rounds.append(known.setdefault(asks, asks))
        holds.append(step.participants == "hold")
        message = plain_arrays(reply, "a message")
        messages.append(tuple(sorted(message)))
        aggregate = {name: value.reshape(-1, value.shape[-1]).mean(0) for name, value in message.items()}
        combined = Combined(aggregate, 1.0)
        step = _advance(lambda: coroutine.send(combined))  # noqa: B023
    return Trace(Plan(tuple(rounds)), tuple(holds), tuple(messages))


def server_rng(seed: int) -> np.random.Generator:
    """The server half's own randomness: public, and the same in the dry run and in the run."""
    return generator(seed, "server half")


def _advance(step: Callable[[], Round]) -> Round | None:
    try:
        return step()
    except StopIteration:
        return None


class _Recorder:
    """Stands where a silo's `ask` stands, and writes down what it is asked."""

    def __init__(self, limits: Limits, answer: Answerer) -> None:
        self.asks: list[Ask] = []
        self._limits, self._answer, self._count = limits, answer, 0

    def __call__(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        ask, plain = plain_queries(queries)
        self.asks.append(ask)
        self._count += len(plain)
        if self._count > self._limits.max_queries_per_round:
            raise Refused(f"a round exceeds the silo's limit of {self._limits.max_queries_per_round} queries")
        self._limits.check_ask(ask)
        for query in plain:
            self._limits.check_clip(query.clip)
        answers = tuple(self._answer(query) for query in plain)
        return answers if len(answers) > 1 else answers[0]
