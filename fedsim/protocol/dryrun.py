"""The dry run: what an algorithm would ask for, found without data, and whether it keeps to the contract.

The coroutine runs twice, in step: for one silo whose answers are zeros and for two silos whose answers are
random (and on two different assumptions about the noise). Its queries must not depend on the answers,
since the plan is priced before round 0; the first round that differs is an error that names it.

Early rounds of every kind run again: with all that the silo method was given, and for each silo alone. A
message must be a function of broadcast, answers and memory, and a silo's row of it must be the same for any
other silos in the process: else a run gives another result on other hosts, and a silo's message is made of
other silos' answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Public, PublicProblem, innermost, traits
from fedsim.protocol.limits import Limits
from fedsim.protocol.passes import STATE, Pass, Step, UnplannedError, changed, features_of, state_of
from fedsim.protocol.plan import Arrays, Ask, Plan
from fedsim.protocol.unit import Unit

_UNSTATED = 5_000  # rounds, and queries in one, that an algorithm may have whatever its numbers are

F1 = {"public_gradient", "descend"}
"""What a problem is asked for its public part's gradient by."""

_DEPENDS = "the queries depend on the answers, so the plan cannot be priced"


@dataclass(frozen=True)
class Trace:
    """The requests that a silo would receive."""

    plan: Plan  # by round
    holds: tuple[bool, ...]  # for each round whether the participating silos are kept from the round before
    broadcasts: tuple[Arrays, ...]  # of each round's broadcast
    messages: tuple[Arrays, ...]  # of a silo's message
    remembers: bool = False  # whether the silo method keeps memory, on any answers
    asked: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())  # of the problem, by each half

    @property
    def uneven(self) -> bool:
        """Whether some round's messages differ in size."""
        return any(len({size for _, size in sent}) > 1 for sent in set(self.messages))

    def of(self, unit: Unit) -> Trace:
        """The requests where this is the unit of privacy."""
        return replace(self, plan=replace(self.plan, unit=unit))


def dry_run(algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, limits: Limits) -> Trace:
    """Record the plan of `algorithm` for one silo. Refused if a round differs between the two runs, breaks
    the contract, or passes one of `limits`; PluginError if the algorithm's code raises.
    """
    blame, before = Blame(algorithm), state_of(algorithm)
    most = _accounted(algorithm, limits)

    def begun(silos: int, noise: float) -> Pass:
        assumed = replace(public, noise_multipliers=torch.full_like(public.noise_multipliers, noise))
        return Pass(algorithm, problem, assumed, seed, limits, most, silos)

    zeros, random = begun(1, 1.0), begun(2, 7.0)
    rounds: list[tuple[tuple[Ask, ...], bool, Arrays, Arrays]] = []
    known: dict[tuple[Ask, ...], tuple[Ask, ...]] = {}
    while (step := _next(blame, len(rounds), zeros, random)) is not None:
        if len(rounds) >= min(most, limits.max_rounds):
            raise blame.breach("server method", _too_many(limits, most))
        asks = _answered(blame, len(rounds), zeros, random)
        sent = tuple(sorted((name, len(value)) for name, value in step.broadcast.items()))
        rounds.append((known.setdefault(asks, asks), step.holds, sent, zeros.sent))
    if not rounds:
        raise blame.breach("server method", "it yields no round, so nothing would be learned")
    if names := changed(algorithm, before):
        raise blame.breach("in its rounds", f"it changes {names}; {STATE}")
    planned, holds, broadcasts, messages = zip(*rounds, strict=True)
    limits.check_plan(Plan(planned), problem.dimension, features_of(problem))
    asked = frozenset(zeros.asked[0] | random.asked[0]), frozenset(zeros.asked[1] | random.asked[1])
    return Trace(Plan(planned), holds, broadcasts, messages, bool(zeros.memory or random.memory), asked)


def _next(blame: Blame, r: int, zeros: Pass, random: Pass) -> Step | None:
    """The next round of both passes, which must be alike."""
    one, other = zeros.next(), random.next()
    if one is None or other is None:
        if one is not other:
            raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers the run has ended by then")
        return None
    if one.holds != other.holds:
        raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers its silos are held")
    if one.broadcast.keys() != other.broadcast.keys():
        raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers it broadcasts other arrays")
    return one


def _answered(blame: Blame, r: int, zeros: Pass, random: Pass) -> tuple[Ask, ...]:
    """The asks of the silo method in round r, which must be the same in both passes."""
    asks = zeros.answer(None)
    try:
        random.answer(asks)
    except UnplannedError:
        raise blame.breach(f"round {r}", _DEPENDS) from None
    if zeros.sent != random.sent:
        names = [tuple(name for name, _ in each.sent) for each in (zeros, random)]
        raise blame.breach(f"round {r}", f"the message is {names[0]} or {names[1]}, by the answers")
    return asks


def _accounted(algorithm: Algorithm, limits: Limits) -> int:
    """Rounds, or queries in one, that its whole numbers account for, so that a loop without end is short.
    Refused if its own count of rounds passes the limit.
    """
    own = innermost(algorithm)  # wrappers add few
    stated = traits(own).num_rounds
    if isinstance(stated, int | float) and not stated <= limits.max_rounds:
        limit = f"the plan exceeds the silo's limit of {limits.max_rounds} rounds"
        raise Blame(own).breach("its numbers", f"{limit}: num_rounds is {stated:g}")
    numbers = (stated, *getattr(own, "__dict__", {}).values())
    counts = (1 + number for number in numbers if type(number) is int and number > 0)
    return max(_UNSTATED, 10 * math.prod(counts))


def _too_many(limits: Limits, accounted: int) -> str:
    if accounted >= limits.max_rounds:
        return f"the plan exceeds the silo's limit of {limits.max_rounds} rounds"
    return f"it goes on after {accounted} rounds, which its numbers do not account for: give it a num_rounds"
