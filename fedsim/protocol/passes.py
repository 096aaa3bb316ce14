"""One pass of the dry run: an algorithm from round to round on made-up answers, checked against the contract.

The text of every refusal is made of names, shapes and types.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import NamedTuple, cast

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.common.seeds import generator, server_rng
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Asker, Combined, Public, PublicProblem, Query, Round, traits
from fedsim.protocol.copies import CohortMemory, copied_arrays, copied_queries, copied_tensor
from fedsim.protocol.limits import Limits, check_table, check_transform
from fedsim.protocol.plan import Ask
from fedsim.protocol.statistics import point_sizes, size_of

_CLOSELY = 3  # rounds of each kind that are run again
_MOST_KEPT = 2**22
"""Numbers in the answers of a round that is played again: no offer must fill a silo's memory."""
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Allowed rounding of a message, relative to the largest entry of its inputs."""
_LARGE = 1e6  # finite numbers beyond it may well give others that are not
_YIELDS = 'it must `mean = yield Round({"w": w}, answer=w)` for every round, and `return w` at its end'
STATE = "what lasts belongs in memory (silo method) or local variables (server method), randomness in rng"
_OWN_ROW = "a silo's message must be made of its own row, so reduce over the last axis only"


class UnplannedError(Refused):
    """A silo method asks something else than it did on other answers."""


class Step(NamedTuple):
    """A round as it was yielded: copies of its broadcast, {name: (d,)}, and the server method's tensors."""

    broadcast: dict[str, Tensor]
    originals: Mapping[str, Tensor]
    holds: bool


class _Reply(NamedTuple):
    """Result of a silo method's round; `answers` are empty where they are not kept."""

    asks: tuple[Ask, ...]
    queries: int
    answers: list[Tensor]
    message: dict[str, Tensor]
    memory: CohortMemory


def _noted(problem: PublicProblem, asked: set[str]) -> PublicProblem:
    """The same problem, of a class that adds the name of whatever is asked of it to `asked`."""
    kind = type(problem)

    def noting(self: object, name: str) -> object:
        asked.add(name)
        return kind.__getattribute__(self, name)

    members = {"__getattribute__": noting, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    noted = copy(problem)
    object.__setattr__(noted, "__class__", type(kind.__name__, (kind,), members))
    return noted


class Pass:
    """The algorithm from round to round, on answers of zeros for one silo, on random ones for several.

    Attributes:
        sent: (name, size) of the last message's arrays, sorted.
        memory: the silos'.
        asked: names of what the server method, and the silo method, asks of the problem.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        problem: PublicProblem,
        public: Public,
        seed: int,
        limits: Limits,
        most: int,
        silos: int,
    ) -> None:
        """Begin the server method; nothing of it runs before the first `next`. The algorithm's numbers
        account for `most` rounds, and queries in one.
        """
        self._algorithm, self._limits, self._most = algorithm, limits, most
        self._silos, self._dimension, self._dtype = silos, problem.dimension, public.weights.dtype
        self._features, self._any_size = features_of(problem), bool(traits(algorithm).any_size)
        self._blame, self._rng = Blame(algorithm), generator(seed, "dry run")
        self._kinds: Counter[object] = Counter()
        self._rounds, self._queries, self._replayed = 0, 0, False
        self._step: Step | None = None
        self._sums: Combined | None = None
        self.sent: tuple[tuple[str, int], ...] = ()
        self.memory = CohortMemory(silos, self._dimension, self._dtype)
        start = problem.project(problem.start(seed).to(self._dtype))
        self.asked = set[str](), set[str]()
        by_server, self._given = (_noted(problem, asked) for asked in self.asked)
        try:
            made = algorithm.server(start, by_server, public, server_rng(seed))
        except Exception as error:
            self._blame.failed(self._place, error)
        if not isinstance(made, Generator):
            raise self._blame.breach(self._place, f"it returned {type(made).__name__}; {_YIELDS}")
        self._server = made

    @property
    def _place(self) -> str:
        after = f"after round {self._rounds - 1}" if self._rounds else "before the first round"
        return f"server method, {after}"

    def next(self) -> Step | None:
        """The server method's next round, or None at the end. Refused if what it yields or returns is not
        what it must be; PluginError if it raises.
        """
        place, last = self._place, self._step
        try:
            try:
                yielded = next(self._server) if self._sums is None else self._server.send(self._sums)
            except StopIteration as stop:
                self._check_model(stop.value, "the model that it returns")
                self._step = None
            else:
                self._step = self._checked(yielded)
                self._rounds += 1
        except Exception as error:
            self._blame.failed(place, error, tuple(self._sums or ()))
        if last is not None and self._replayed:
            self._check_unchanged(last, place, "it broadcast")
        return self._step

    def _checked(self, step: object) -> Step:
        if not isinstance(step, Round):
            raise Refused(f"it yielded {type(step).__name__}, not a Round; {_YIELDS}")
        copies = copied_arrays(step.broadcast, "the broadcast")
        for name, value in copies.items():
            self._check_shape(value, f"the broadcast's {name!r}", 1, "(d,)", size=self._size(value))
        self._check_model(step.answer, "the round's answer")
        if step.participants not in ("resample", "hold"):
            raise Refused(f"participants is {step.participants!r}; it must be 'resample' or 'hold'")
        return Step(copies, dict(step.broadcast), step.participants == "hold")

    def _check_model(self, value: object, what: str) -> None:
        if value is None:
            raise Refused(f"{what} is None; {_YIELDS}")
        model = copied_tensor(value, what)
        self._check_shape(model, what, 1, "(d,)", size=self._size(model))

    def _size(self, value: Tensor) -> int:
        """The size that an array sent must have: d, or any."""
        return value.shape[-1] if self._any_size and value.dim() and value.shape[-1] else self._dimension

    def _check_shape(
        self, value: Tensor, what: str, silos: int, *shapes: str, size: int | None = None
    ) -> None:
        """Refuse another type, or none of these shapes, such as "(silos, d)", with `size` in place of d."""
        d = self._dimension if size is None else size
        sizes = {"()": (), "(d,)": (d,), "(1, d)": (1, d), "(silos, 1)": (silos, 1), "(silos, d)": (silos, d)}
        if value.dtype != self._dtype or not any(value.shape == sizes[shape] for shape in shapes):
            wanted = " or ".join(dict.fromkeys(str(sizes[shape]) for shape in shapes))
            given = f"{tuple(value.shape)} {value.dtype}"
            raise Refused(f"{what} is {given}; it must be {' or '.join(shapes)}, here {wanted} {self._dtype}")

    def _check_unchanged(self, step: Step, where: str, what: str) -> None:
        for name, value in step.originals.items():
            if not _same(value, step.broadcast[name]):
                hint = "w -= g does, w = w - g makes a new tensor"
                raise self._blame.breach(where, f"it changes the {name!r} that {what}: {hint}")

    def answer(self, planned: tuple[Ask, ...] | None) -> tuple[Ask, ...]:
        """The silo method of the round, on new answers; returns what it asks.

        A planned round of a new kind is played again (`_check_again`).
        """
        step, r = self._step, self._rounds - 1
        assert step is not None
        queries = [query for ask in planned or () for query in ask.queries]
        numbers = self._silos * sum(size_of(query, self._dimension, self._features) for query in queries)
        keep = planned is not None and numbers <= _MOST_KEPT
        reply = self._play(r, step.broadcast, self.memory, self._made_up, planned, keep)
        self.sent = tuple(sorted((name, value.shape[-1]) for name, value in reply.message.items()))
        kind = reply.asks, tuple(step.broadcast), self.sent, tuple(reply.memory)
        self._replayed = keep and self._kinds[kind] < _CLOSELY
        if self._replayed:
            self._kinds[kind] += 1
            self._check_unchanged(step, f"silo method, round {r}", "it was sent")
            self._check_again(r, step.broadcast, reply)
        self.memory, self._queries = reply.memory, self._queries + reply.queries
        self._sums = Combined({name: value.mean(0) for name, value in reply.message.items()}, 1.0)
        return reply.asks

    def _made_up(self, query: Query, number: int) -> Tensor:
        shape = self._silos, size_of(query.shape, self._dimension, self._features)
        if self._silos == 1:
            return torch.zeros(shape, dtype=self._dtype)
        drawn = torch.as_tensor(self._rng.standard_normal(shape)).to(self._dtype)
        return drawn * (query.clip / math.sqrt(shape[1]))

    def _play(
        self,
        r: int,
        broadcast: Mapping[str, Tensor],
        memory: CohortMemory,
        answer: Callable[[Query, int], Tensor],
        planned: tuple[Ask, ...] | None,
        keep: bool,
    ) -> _Reply:
        """The silo method of round r for the silos of `memory`, which stays as it is.

        `answer` makes of a query and its number in the round an answer, (silos, d), kept to play the round
        again if `keep` says so; `planned` is what it must ask, None for anything. Refused if it breaks the
        contract or a limit, or asks something else; PluginError if it raises.
        """
        asks, answers, count = list[Ask](), list[Tensor](), 0

        def ask(*queries: Query) -> Tensor | tuple[Tensor, ...]:
            nonlocal count
            asked, copies = copied_queries(queries)
            asks.append(asked)
            if planned is not None and planned[len(asks) - 1 : len(asks)] != (asked,):
                raise UnplannedError
            self._check_asked(asked, copies, count, memory.silos)
            made = tuple(answer(query, count + place) for place, query in enumerate(copies))
            count += len(made)
            if keep:
                answers.extend(value.clone() for value in made)  # the silo method may write to its own
            return made if len(made) > 1 else made[0]

        everyone = list(range(memory.silos))
        own, kept = memory.select(everyone), memory.select(everyone)
        try:
            given = self._algorithm.silo(self._given, broadcast, cast(Asker, ask), own)
            if planned is not None and planned != tuple(asks):
                raise UnplannedError
            message = self._by_silo(given, "message", memory.silos)
            kept.update(self._by_silo(own, "memory", memory.silos))
        except UnplannedError:
            raise
        except Exception as error:
            self._blame.failed(f"silo method, round {r}", error, tuple(broadcast))
        return _Reply(tuple(asks), count, answers, message, kept)

    def _check_asked(self, asked: Ask, queries: Sequence[Query], before: int, silos: int) -> None:
        """Refuse queries outside the contract or the limits; `before` were asked in this round already."""
        if before + len(queries) > self._most:
            raise Refused(f"it asks on after {self._most} queries, which its numbers do not account for")
        self._limits.check_count(before + len(queries), self._queries, self._dimension)
        self._limits.check_ask(asked, self._dimension, self._features)
        for query in queries:
            sizes = point_sizes(query.shape, self._dimension, self._features)
            for point, d in zip(query.points, sizes, strict=True):
                self._check_shape(point, "a point of a query", silos, "(d,)", "(silos, d)", size=d)
            check_table(query)
            check_transform(query.transform, self._features, self._dtype)
            # A clip of one number as (1,) is the norm of a shared vector.
            if isinstance(query.clip, Tensor) and tuple(query.clip.shape) != (1,):
                self._check_shape(query.clip, "clip", silos, "()", "(silos, 1)")
            self._limits.check_clip(query.clip, query.statistic)

    def _by_silo(self, arrays: Mapping[str, Tensor], what: str, silos: int) -> dict[str, Tensor]:
        """Copies of a message or memory, {name: (silos, d)}."""
        named = copied_arrays(arrays, f"the {what}")
        for name, value in named.items():
            shapes, size = ("(silos, d)", "(1, d)", "(d,)"), self._size(value)
            self._check_shape(value, f"the {what}'s {name!r}", silos, *shapes, size=size)
        return {name: value.expand(silos, value.shape[-1]) for name, value in named.items()}

    def _check_again(self, r: int, broadcast: Mapping[str, Tensor], first: _Reply) -> None:
        """Refuse a message that is not finite, or that is another when the round is played again."""
        where, everyone = f"silo method, round {r}", range(self._silos)
        given = [*broadcast.values(), *self.memory.values(), *first.answers, *first.message.values()]
        scale = max((float(value.abs().nan_to_num(0.0).amax()) for value in given), default=0.0)
        for name, value in first.message.items():
            if scale <= _LARGE and not bool(value.isfinite().all()):
                finite = "is not finite, though all that the silo method was given is"
                raise self._blame.breach(where, f"the message's {name!r} {finite}")
        rounding, before = scale * _ROUNDING[self._dtype], state_of(self._algorithm)
        if found := self._difference(r, broadcast, first, everyone, rounding):
            names = changed(self._algorithm, before)
            also = f", and it changes {names}" if names else ""
            raise self._blame.breach(where, f"{found} when it runs again on the same{also}; {STATE}")
        for row in everyone:
            if found := self._difference(r, broadcast, first, [row], rounding):
                silos = f"for a silo alone than among {self._silos}"
                raise self._blame.breach(where, f"{found} {silos}; {_OWN_ROW}")

    def _difference(
        self, r: int, broadcast: Mapping[str, Tensor], first: _Reply, rows: Sequence[int], rounding: float
    ) -> str | None:
        """The first difference when these silos run the round again on the same answers, or None."""
        copies = {name: value.clone() for name, value in broadcast.items()}

        def answer(query: Query, number: int) -> Tensor:
            return first.answers[number][rows].clone()

        try:
            again = self._play(r, copies, self.memory.select(list(rows)), answer, first.asks, keep=False)
        except UnplannedError:
            return "it asks something else"
        pairs = ("message", first.message, again.message), ("memory", first.memory, again.memory)
        for what, one, other in pairs:
            if set(one) != set(other):
                return f"the {what} has other names"
            for name, value in other.items():
                if not bool(((one[name][rows] - value).abs().nan_to_num(0.0) <= rounding).all()):
                    return f"the {what}'s {name!r} is another"
        return None


def features_of(problem: PublicProblem) -> int:
    """A record's features; one for each of the d parameters where a problem does not say."""
    return int(getattr(problem, "num_features", problem.dimension))


def state_of(algorithm: object) -> dict[str, tuple[int, str]]:
    """Attributes of an object, to be compared later."""
    kind, held = type(algorithm), getattr(algorithm, "__dict__", {})
    lazy = [name for name in held if isinstance(getattr(kind, name, None), cached_property)]
    return {name: (id(value), repr(value)) for name, value in held.items() if name not in lazy}


def changed(algorithm: object, before: Mapping[str, tuple[int, str]]) -> str:
    """Attributes that have changed, as `self.a, self.b`."""
    now = state_of(algorithm)
    return ", ".join(f"self.{name}" for name in sorted({*now, *before}) if now.get(name) != before.get(name))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN being equal to itself."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
