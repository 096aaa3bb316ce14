"""The dry run: what an algorithm would ask for, found without data, and whether it keeps to the contract.

The coroutine runs twice, in step: for one silo whose answers are zeros and for two silos whose answers are
random (and on two different assumptions about the noise). Its queries must not depend on what it is told,
since the plan is priced before round 0; the first round that differs is an error that names it.

Early rounds of every kind are played again: with all that the silo half was given, and for each silo alone. A
message must be a function of broadcast, answers and memory, and a silo's own row of it must be the same
whoever shares a process with the silo: else a run gives another result on other hosts, and a silo's message
is made of other silos' answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedsim.common.seeds import generator
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Combined, Public, PublicProblem
from fedsim.protocol.halves import Answerer, Played, ServerHalf, Shape, SiloHalf, Step, Unplanned
from fedsim.protocol.limits import Limits
from fedsim.protocol.plain import CohortMemory, PlainQuery
from fedsim.protocol.plan import Ask, Plan

_UNSTATED = 5_000
"""Rounds, and queries in one, that an algorithm may have whatever its numbers are."""
_CLOSELY = 3
"""As many rounds of a kind are played again."""
_MOST_KEPT = 2**22
"""Numbers in the answers of a round that is played again: no offer must fill a silo's memory."""
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Of a message, over the largest entry of what it is made of."""
_LARGE = 1e6
"""Finite numbers beyond it may well give others that are not."""

_DEPENDS = "the queries depend on the answers, so the plan cannot be priced"
_STATE = "what lasts belongs in memory (silo half) or local variables (server half), randomness in rng"
_OWN_ROW = "a silo's message must be made of its own row, so reduce over the last axis only"


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
    blame, before = Blame(algorithm), _state(algorithm)
    most = _accounted(algorithm, limits)
    half = SiloHalf(algorithm, problem, limits, most)

    def walk(silos: int, noise: float, random: bool) -> _Walk:
        shape = Shape(silos, problem.dimension, public.weights.dtype)
        assumed = replace(public, noise_multipliers=torch.full_like(public.noise_multipliers, noise))
        server = ServerHalf(algorithm, problem, assumed, seed, shape)
        return _Walk(server, half, shape, _random(seed, shape) if random else _zeros(shape))

    quiet, loud = walk(1, 1.0, random=False), walk(2, 7.0, random=True)
    rounds: list[tuple[tuple[Ask, ...], bool, tuple[str, ...], tuple[str, ...]]] = []
    known: dict[tuple[Ask, ...], tuple[Ask, ...]] = {}
    while (step := _next(blame, len(rounds), quiet, loud)) is not None:
        if len(rounds) >= min(most, limits.max_rounds):
            raise blame.breach("server half", _too_many(limits, most))
        asks = _played(blame, len(rounds), quiet, loud)
        rounds.append((known.setdefault(asks, asks), step.holds, tuple(sorted(step.broadcast)), quiet.names))
    if not rounds:
        raise blame.breach("server half", "it yields no round, so nothing would be learned")
    if names := _changed(algorithm, before):
        raise blame.breach("in its rounds", f"it changes {names}; {_STATE}")
    planned, holds, broadcasts, messages = zip(*rounds, strict=True)
    limits.check_plan(Plan(planned), problem.dimension)
    return Trace(Plan(planned), holds, broadcasts, messages, bool(quiet.memory or loud.memory))


def _next(blame: Blame, r: int, quiet: _Walk, loud: _Walk) -> Step | None:
    """Both walks' next round, which must be alike."""
    one, other = quiet.next(), loud.next()
    if one is None or other is None:
        if one is not other:
            raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers the run has ended by then")
        return None
    if one.holds != other.holds:
        raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers its silos are held")
    if one.broadcast.keys() != other.broadcast.keys():
        raise blame.breach(f"round {r}", f"{_DEPENDS}: on some answers it broadcasts other arrays")
    return one


def _played(blame: Blame, r: int, quiet: _Walk, loud: _Walk) -> tuple[Ask, ...]:
    asks = quiet.play(None)
    try:
        loud.play(asks)
    except Unplanned:
        raise blame.breach(f"round {r}", _DEPENDS) from None
    if quiet.names != loud.names:
        raise blame.breach(f"round {r}", f"the message is {quiet.names} or {loud.names}, by the answers")
    return asks


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


def _zeros(shape: Shape) -> Answerer:
    return lambda query, number: torch.zeros(shape.silos, shape.dimension, dtype=shape.dtype)


def _random(seed: int, shape: Shape) -> Answerer:
    rng = generator(seed, "dry run")

    def answer(query: PlainQuery, number: int) -> Tensor:
        drawn = rng.standard_normal((shape.silos, shape.dimension))
        return torch.as_tensor(drawn).to(shape.dtype) * (query.clip / math.sqrt(shape.dimension))

    return answer


class _Walk:
    """The algorithm from round to round, on answers that are made up.

    Attributes:
        names: of the last message's arrays, sorted.
        memory: the silos'.
    """

    def __init__(self, server: ServerHalf, silo: SiloHalf, shape: Shape, answer: Answerer) -> None:
        self._server, self._silo, self._shape, self._answer = server, silo, shape, answer
        self._blame = Blame(silo.algorithm)
        self._kinds: Counter[object] = Counter()
        self._asked, self._close = 0, False
        self._step: Step | None = None
        self._sent: Combined | None = None
        self.names: tuple[str, ...] = ()
        self.memory = CohortMemory(shape.silos, shape.dimension, shape.dtype)

    def next(self) -> Step | None:
        """The server half's next round, or None at the end."""
        where, last = self._server.where, self._step
        self._step = self._server.next(self._sent)
        if last is not None and self._close:
            self._check_in_place(last, where, "it broadcast")
        return self._step

    def play(self, planned: tuple[Ask, ...] | None) -> tuple[Ask, ...]:
        """The silos' half of the round; what it asks. A planned one of a new kind is played again."""
        step, r = self._step, self._server.rounds - 1
        assert step is not None
        numbers = self._shape.silos * self._shape.dimension * sum(len(ask.queries) for ask in planned or ())
        keep = planned is not None and numbers <= _MOST_KEPT
        played = self._silo.play(
            r, step.broadcast, self.memory, self._answer, self._shape, planned, self._asked, keep
        )
        asks, self._asked = tuple(played.asks), self._asked + played.count
        self.names = tuple(sorted(played.message))
        kind = asks, tuple(step.broadcast), self.names, tuple(played.memory)
        self._close = keep and self._kinds[kind] < _CLOSELY
        if self._close:
            self._kinds[kind] += 1
            self._check_in_place(step, f"silo half, round {r}", "it was sent")
            self._check_again(r, step.broadcast, played)
        self.memory = played.memory
        self._sent = Combined({name: value.mean(0) for name, value in played.message.items()}, 1.0)
        return asks

    def _check_in_place(self, step: Step, where: str, what: str) -> None:
        for name, value in step.originals.items():
            if not _same(value, step.broadcast[name]):
                hint = "w -= g does, w = w - g makes a new tensor"
                raise self._blame.breach(where, f"it changes the {name!r} that {what}: {hint}")

    def _check_again(self, r: int, broadcast: Mapping[str, Tensor], played: Played) -> None:
        """Refuse a message that is not finite, or that is another when the round is played again."""
        where, everyone = f"silo half, round {r}", range(self._shape.silos)
        given = [*broadcast.values(), *self.memory.values(), *played.answers, *played.message.values()]
        scale = max((float(value.abs().nan_to_num(0.0).amax()) for value in given), default=0.0)
        for name, value in played.message.items():
            if scale <= _LARGE and not bool(value.isfinite().all()):
                finite = "is not finite, though all that the silo half was given is"
                raise self._blame.breach(where, f"the message's {name!r} {finite}")
        rounding, before = scale * _ROUNDING[self._shape.dtype], _state(self._silo.algorithm)
        if found := self._difference(r, broadcast, played, everyone, rounding):
            names = _changed(self._silo.algorithm, before)
            kept = f", and it changes {names}" if names else ""
            raise self._blame.breach(where, f"{found} when it runs again on the same{kept}; {_STATE}")
        for row in everyone:
            if found := self._difference(r, broadcast, played, [row], rounding):
                silos = f"for a silo alone than among {self._shape.silos}"
                raise self._blame.breach(where, f"{found} {silos}; {_OWN_ROW}")

    def _difference(
        self, r: int, broadcast: Mapping[str, Tensor], played: Played, rows: Sequence[int], rounding: float
    ) -> str | None:
        """What is another when these silos play the round again; the answers are those that were kept."""
        shape = Shape(len(rows), self._shape.dimension, self._shape.dtype)
        copies = {name: value.clone() for name, value in broadcast.items()}

        def answer(query: PlainQuery, number: int) -> Tensor:
            return played.answers[number][rows].clone()

        try:
            again = self._silo.play(
                r, copies, self.memory.select(list(rows)), answer, shape, tuple(played.asks)
            )
        except Unplanned:
            return "it asks something else"
        pairs = ("message", played.message, again.message), ("memory", played.memory, again.memory)
        for what, one, other in pairs:
            if set(one) != set(other):
                return f"the {what} has other names"
            for name, value in other.items():
                apart = (one[name][rows] - value).abs()
                if not bool((apart.nan_to_num(0.0) <= rounding).all()):
                    return f"the {what}'s {name!r} is another"
        return None


def _state(algorithm: object) -> dict[str, tuple[int, str]]:
    """What an object holds, to be compared later."""
    kind, held = type(algorithm), getattr(algorithm, "__dict__", {})
    lazy = [name for name in held if isinstance(getattr(kind, name, None), cached_property)]
    return {name: (id(value), repr(value)) for name, value in held.items() if name not in lazy}


def _changed(algorithm: object, before: Mapping[str, tuple[int, str]]) -> str:
    """Attributes that are others than before, as `self.a, self.b`."""
    now = _state(algorithm)
    return ", ".join(f"self.{name}" for name in sorted({*now, *before}) if now.get(name) != before.get(name))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN being equal to itself."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
