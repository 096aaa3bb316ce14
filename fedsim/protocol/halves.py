"""An algorithm's two halves as the dry run plays them: what each hands over is checked against the contract.

The text of every refusal is made of names, shapes and types.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.common.seeds import server_rng
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Asker, Combined, Public, PublicProblem, Query, Round
from fedsim.protocol.limits import Limits
from fedsim.protocol.plain import CohortMemory, PlainQuery, plain_arrays, plain_queries, plain_tensor
from fedsim.protocol.plan import Ask

Answerer = Callable[[PlainQuery, int], Tensor]
"""(query, its number in the round) to an answer, (silos, d)."""

_YIELDS = 'it must `mean = yield Round({"w": w}, answer=w)` for every round, and `return w` at its end'
_PARTICIPANTS = ("resample", "hold")


class Shape:
    """What tensors of one federation look like."""

    def __init__(self, silos: int, dimension: int, dtype: torch.dtype) -> None:
        self.silos, self.dimension, self.dtype = silos, dimension, dtype
        self._sizes: dict[str, tuple[int, ...]] = {
            "()": (),
            "(d,)": (dimension,),
            "(1, d)": (1, dimension),
            "(silos, 1)": (silos, 1),
            "(silos, d)": (silos, dimension),
        }

    def check(self, value: Tensor, what: str, *shapes: str) -> None:
        """Refuse a tensor of another type, or of none of these shapes, such as "(silos, d)"."""
        if value.dtype != self.dtype or not any(value.shape == self._sizes[shape] for shape in shapes):
            wanted = " or ".join(dict.fromkeys(str(self._sizes[shape]) for shape in shapes))
            given = f"{tuple(value.shape)} {value.dtype}"
            raise Refused(f"{what} is {given}; it must be {' or '.join(shapes)}, here {wanted} {self.dtype}")

    def by_silo(self, arrays: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
        """Copies of a message or memory, {name: (silos, d)}."""
        named = plain_arrays(arrays, f"the {what}")
        for name, value in named.items():
            self.check(value, f"the {what}'s {name!r}", "(silos, d)", "(1, d)", "(d,)")
        return {name: value.expand(self.silos, self.dimension) for name, value in named.items()}


class Step(NamedTuple):
    """A round as it was yielded.

    Args:
        broadcast: copies, {name: (d,)}.
        originals: the server half's own tensors.
        holds: whether the silos of the round before are kept.
    """

    broadcast: dict[str, Tensor]
    originals: Mapping[str, Tensor]
    holds: bool


class ServerHalf:
    """The coroutine, advanced round by round; `rounds` counts those that it has yielded."""

    def __init__(
        self, algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, shape: Shape
    ) -> None:
        """Begin it; nothing of it runs before the first `next`.

        Raises:
            Refused: it is no generator.
            PluginError: it raises.
        """
        self._blame, self._shape, self.rounds = Blame(algorithm), shape, 0
        start = problem.project(problem.start(seed).to(shape.dtype))
        try:
            made = algorithm.server(start, problem, public, server_rng(seed))
        except Exception as error:
            self._blame.failed(self.where, error)
        if not isinstance(made, Generator):
            raise self._blame.breach(self.where, f"it returned {type(made).__name__}; {_YIELDS}")
        self._coroutine = made

    @property
    def where(self) -> str:
        """Where it stands, for messages."""
        place = "before the first round" if self.rounds == 0 else f"after round {self.rounds - 1}"
        return f"server half, {place}"

    def next(self, sent: Combined | None) -> Step | None:
        """The next round, or None at the end.

        Raises:
            Refused: what it yields or returns is not what it must be.
            PluginError: it raises.
        """
        try:
            step = self._taken(next(self._coroutine) if sent is None else self._coroutine.send(sent))
        except StopIteration as stop:
            model = stop.value
        except Exception as error:
            self._blame.failed(self.where, error, tuple(sent or ()))
        else:
            self.rounds += 1
            return step
        try:
            self._check_model(model, "the model that it returns")
        except Refused as refusal:
            raise self._blame.breach(self.where, str(refusal)) from None
        return None

    def _taken(self, step: object) -> Step:
        if not isinstance(step, Round):
            raise Refused(f"it yielded {type(step).__name__}, not a Round; {_YIELDS}")
        copies = plain_arrays(step.broadcast, "the broadcast")
        for name, value in copies.items():
            self._shape.check(value, f"the broadcast's {name!r}", "(d,)")
        self._check_model(step.answer, "the round's answer")
        if step.participants not in _PARTICIPANTS:
            raise Refused(f"participants is {step.participants!r}; it must be 'resample' or 'hold'")
        return Step(copies, dict(step.broadcast), step.participants == "hold")

    def _check_model(self, value: Any, what: str) -> None:
        if value is None:
            raise Refused(f"{what} is None; {_YIELDS}")
        self._shape.check(plain_tensor(value, what), what, "(d,)")


class Unplanned(Refused):
    """A silo half asks something else than it did on other answers."""


@dataclass(frozen=True)
class SiloHalf:
    """The silo half of an algorithm; `most` queries in a round are what its numbers account for."""

    algorithm: Algorithm
    problem: PublicProblem
    limits: Limits
    most: int

    def play(
        self,
        r: int,
        broadcast: Mapping[str, Tensor],
        memory: CohortMemory,
        answer: Answerer,
        shape: Shape,
        planned: tuple[Ask, ...] | None = None,
        asked: int = 0,
        keep: bool = False,
    ) -> Played:
        """Round r of a cohort; `memory` stays as it is.

        Args:
            planned: what it must ask; None: anything.
            asked: queries of earlier rounds, which count towards the limits.
            keep: the answers, to play the round again.

        Raises:
            Refused: it breaks the contract or a limit, or asks something else than planned.
            PluginError: it raises.
        """
        everyone = list(range(shape.silos))
        played, part = Played(self, answer, shape, planned, asked, keep), memory.select(everyone)
        try:
            message = self.algorithm.silo(self.problem, broadcast, cast(Asker, played.ask), part)
            if planned is not None and planned != tuple(played.asks):
                raise Unplanned
            played.message = shape.by_silo(message, "message")
            played.memory = memory.select(everyone)
            played.memory.update(shape.by_silo(part, "memory"))
        except Unplanned:
            raise
        except Exception as error:
            Blame(self.algorithm).failed(f"silo half, round {r}", error, tuple(broadcast))
        return played


class Played:
    """What a silo half does in a round; `ask` stands where a silo's does.

    Attributes:
        asks: in their order.
        count: of queries in them.
        answers: to each query, (silos, d), where they are to be kept.
        message: {name: (silos, d)}.
        memory: what is kept.
    """

    message: Mapping[str, Tensor]
    memory: CohortMemory

    def __init__(
        self,
        half: SiloHalf,
        answer: Answerer,
        shape: Shape,
        planned: tuple[Ask, ...] | None,
        asked: int,
        keep: bool,
    ) -> None:
        self.asks: list[Ask] = []
        self.answers: list[Tensor] = []
        self.count = 0
        self._half, self._answer, self._shape = half, answer, shape
        self._planned, self._asked, self._keep = planned, asked, keep

    def ask(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        """Answer, if the queries keep to contract, plan and limits."""
        ask, plain = plain_queries(queries)
        self.asks.append(ask)
        place, limits, most = len(self.asks) - 1, self._half.limits, self._half.most
        if self._planned is not None and self._planned[place : place + 1] != (ask,):
            raise Unplanned
        if self.count + len(plain) > most:
            raise Refused(f"it asks on after {most} queries, which its numbers do not account for")
        limits.check_count(self.count + len(plain), self._asked, self._shape.dimension)
        limits.check_ask(ask)
        answers = tuple(self._answered(query) for query in plain)
        return answers if len(answers) > 1 else answers[0]

    def _answered(self, query: PlainQuery) -> Tensor:
        for point in query.points:
            self._shape.check(point, "a point of a query", "(d,)", "(silos, d)")
        if isinstance(query.clip, Tensor) and tuple(query.clip.shape) != (1,):  # the norm of a shared vector
            self._shape.check(query.clip, "clip", "()", "(silos, 1)")
        self._half.limits.check_clip(query.clip)
        value = self._answer(query, self.count)
        self.count += 1
        if self._keep:
            self.answers.append(value.clone())  # the silo half may write to its own
        return value
