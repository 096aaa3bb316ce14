"""The dry run: what an algorithm would ask for, found without data, and whether it keeps to the contract.

The coroutine runs twice, in step: for one silo whose answers are zeros and for two silos whose answers are
random (and on two different assumptions about the noise). Its queries must not depend on what it is told,
since the plan is priced before round 0; the first round that differs is an error that names it. Early rounds
of every kind are played again (`fedsim.protocol.replay`): a message must be a function of what the silo half
was given, and a silo's own, whoever it shares a process with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Public, PublicProblem
from fedsim.protocol.halves import Shape, Step, Unplanned
from fedsim.protocol.limits import Limits
from fedsim.protocol.plain import PlainQuery
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.replay import STATE, changed, state
from fedsim.protocol.seeds import generator
from fedsim.protocol.walk import Draw, Walk


@dataclass(frozen=True)
class Trace:
    """What a silo would be asked.

    Args:
        plan: by round.
        holds: for each round whether the participating silos are kept from the round before.
        broadcasts: for each round the names of the arrays in the broadcast, sorted; all are (d,).
        messages: of those in a silo's message.
        remembers: whether the silo half keeps memory, on any answers.
    """

    plan: Plan
    holds: tuple[bool, ...]
    broadcasts: tuple[tuple[str, ...], ...]
    messages: tuple[tuple[str, ...], ...]
    remembers: bool = False


def dry_run(algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, limits: Limits) -> Trace:
    """Record the plan of `algorithm` for one silo.

    Raises:
        Refused: a round differs between the two runs, breaks the contract, or passes one of `limits`.
        PluginError: the algorithm's code raises.
    """
    blame, before = Blame(algorithm), state(algorithm)
    most = _accounted(algorithm, limits)
    quiet = Walk(algorithm, problem, _with_noise(public, 1.0), seed, limits, most, 1, _zeros)
    loud = Walk(algorithm, problem, _with_noise(public, 7.0), seed, limits, most, 2, _random(seed))
    rounds: list[tuple[Ask, ...]] = []
    known: dict[tuple[Ask, ...], tuple[Ask, ...]] = {}
    holds: list[bool] = []
    broadcasts: list[tuple[str, ...]] = []
    messages: list[tuple[str, ...]] = []
    while (step := _next(blame, len(rounds), quiet, loud)) is not None:
        if len(rounds) >= min(most, limits.max_rounds):
            raise blame.breach("server half", _too_many(limits, most))
        asks = _played(blame, len(rounds), quiet, loud)
        rounds.append(known.setdefault(asks, asks))
        holds.append(step.holds)
        broadcasts.append(tuple(sorted(step.broadcast)))
        messages.append(quiet.names)
    if not rounds:
        raise blame.breach("server half", "it yields no round, so nothing would be learned")
    if names := changed(algorithm, before):
        raise blame.breach("in its rounds", f"it changes self.{', self.'.join(names)}; {STATE}")
    plan = Plan(tuple(rounds))
    limits.check_plan(plan, problem.dimension)
    remembers = bool(quiet.memory or loud.memory)
    return Trace(plan, tuple(holds), tuple(broadcasts), tuple(messages), remembers)


def _next(blame: Blame, r: int, quiet: Walk, loud: Walk) -> Step | None:
    """Both walks' next round, which must be alike."""
    quiet.next()
    loud.next()
    one, other = quiet.step, loud.step
    if one is None or other is None:
        if one is not other:
            raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers the run has ended by then")
        return None
    if one.holds != other.holds:
        raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers its silos are held")
    if one.broadcast.keys() != other.broadcast.keys():
        raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers it broadcasts other arrays")
    return one


def _played(blame: Blame, r: int, quiet: Walk, loud: Walk) -> tuple[Ask, ...]:
    asks = quiet.play(None)
    try:
        loud.play(asks, closely=True)
    except Unplanned:
        raise blame.breach(f"round {r}", _DEPENDS) from None
    if quiet.names != loud.names:
        raise blame.breach(f"round {r}", f"the message is {quiet.names} or {loud.names}, by the answers")
    return asks


_DEPENDS = "the queries depend on the answers, so the plan cannot be priced"


_UNSTATED = 5_000
"""Rounds, and queries in one, that an algorithm may have whatever its numbers are."""


def _accounted(algorithm: Algorithm, limits: Limits) -> int:
    """Rounds, or queries in one, that its whole numbers account for, so that a loop without end is short.

    Raises:
        Refused: its own count of rounds passes the limit.
    """
    stated = getattr(algorithm, "num_rounds", 0)
    if isinstance(stated, int | float) and not stated <= limits.max_rounds:
        limit = f"the plan exceeds the silo's limit of {limits.max_rounds} rounds"
        raise Blame(algorithm).breach("its numbers", f"{limit}: num_rounds is {stated:g}")
    numbers = (stated, *getattr(algorithm, "__dict__", {}).values())
    counts = (1 + number for number in numbers if type(number) is int and number > 0)
    return max(_UNSTATED, 10 * math.prod(counts))


def _too_many(limits: Limits, accounted: int) -> str:
    if accounted >= limits.max_rounds:
        return f"the plan exceeds the silo's limit of {limits.max_rounds} rounds"
    return f"it goes on after {accounted} rounds, which its numbers do not account for: give it a num_rounds"


def _zeros(query: PlainQuery, shape: Shape) -> Tensor:
    return torch.zeros(shape.silos, shape.dimension, dtype=shape.dtype)


def _random(seed: int) -> Draw:
    rng = generator(seed, "dry run")

    def draw(query: PlainQuery, shape: Shape) -> Tensor:
        drawn = rng.standard_normal((shape.silos, shape.dimension))
        return torch.as_tensor(drawn).to(shape.dtype) * (query.clip / math.sqrt(shape.dimension))

    return draw


def _with_noise(public: Public, multiplier: float) -> Public:
    return replace(public, noise_multipliers=torch.full_like(public.noise_multipliers, multiplier))
