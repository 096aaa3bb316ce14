"""An algorithm's two halves as the dry run plays them: what each hands over is checked against the contract.

The text of every refusal is made of names, shapes and types.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Asker, Combined, Public, PublicProblem, Query, Round
from fedsim.protocol.limits import Limits
from fedsim.protocol.memory import CohortMemory
from fedsim.protocol.plain import PlainQuery, plain_arrays, plain_queries, plain_tensor
from fedsim.protocol.plan import Ask
from fedsim.protocol.seeds import server_rng

Answerer = Callable[[PlainQuery, int], Tensor]
"""(query, its number in the round) to an answer, (silos, d)."""

T = TypeVar("T")
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

    def rows(self, value: Tensor) -> Tensor:
        """One row a silo."""
        return value.expand(self.silos, self.dimension)


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
    """The coroutine, advanced round by round."""

    def __init__(
        self, algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, shape: Shape
    ) -> None:
        """Begin it; nothing of it runs before the first `next`.

        Raises:
            Refused: it is no generator.
            PluginError: it raises.
        """
        self._blame, self._shape, self._rounds = Blame(algorithm), shape, 0
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
        """Where it stands."""
        place = "before the first round" if self._rounds == 0 else f"after round {self._rounds - 1}"
        return f"server half, {place}"

    def next(self, sent: Combined | None) -> Step | None:
        """The next round, or None at the end.

        Raises:
            Refused: what it yields or returns is not what it must be.
            PluginError: it raises.
        """
        try:
            step = next(self._coroutine) if sent is None else self._coroutine.send(sent)
        except StopIteration as stop:
            end = stop.value
            self._checked(lambda: self._check_model(end, "the model that it returns"))
            return None
        except Exception as error:
            self._blame.failed(self.where, error, tuple(sent or ()))
        taken = self._checked(lambda: self._taken(step))
        self._rounds += 1
        return taken

    def _checked(self, check: Callable[[], T]) -> T:
        try:
            return check()
        except Refused as refusal:
            raise self._blame.breach(self.where, str(refusal)) from None

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


class Played:
    """What a silo half did in a round.

    Args:
        asks: in their order.
        answers: to each query, (silos, d), where they were to be kept.
        message: {name: (silos, d)}.
        memory: what is kept.
    """

    def __init__(
        self,
        asks: tuple[Ask, ...],
        answers: list[Tensor],
        message: Mapping[str, Tensor],
        memory: CohortMemory,
    ) -> None:
        self.asks, self.answers, self.message, self.memory = asks, answers, message, memory


class SiloHalf:
    """The silo half of a cohort."""

    def __init__(self, algorithm: Algorithm, problem: PublicProblem, limits: Limits, most: int) -> None:
        """`most`: queries in a round that the algorithm's numbers account for."""
        self._algorithm, self._problem, self._limits, self._most = algorithm, problem, limits, most
        self._blame, self._asked = Blame(algorithm), 0

    def play(
        self,
        r: int,
        broadcast: Mapping[str, Tensor],
        memory: CohortMemory,
        answer: Answerer,
        shape: Shape,
        planned: tuple[Ask, ...] | None = None,
        keep: bool = False,
    ) -> Played:
        """One round; `memory` stays as it is.

        Args:
            planned: what it must ask; None: anything.
            keep: the answers, to play it again.

        Raises:
            Refused: it breaks the contract or a limit, or asks something else than planned.
            PluginError: it raises.
        """
        part = memory.select(list(range(shape.silos)))
        recorder = _Recorder(self._limits, answer, shape, planned, self._asked, self._most, keep)
        try:
            message = self._algorithm.silo(self._problem, broadcast, cast(Asker, recorder), part)
            recorder.finish()
            named = dict(_named(message, "message", shape))
            kept = dict(_named(part, "memory", shape))
        except Unplanned:
            raise
        except Exception as error:
            self._blame.failed(f"silo half, round {r}", error, tuple(broadcast))
        self._asked += recorder.count
        memory = memory.select(list(range(shape.silos)))
        memory.update(kept)
        return Played(tuple(recorder.asks), recorder.answers, named, memory)


class Unplanned(Refused):
    """A silo half asks something else than it did on other answers."""


def _named(arrays: Mapping[str, Tensor], what: str, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    for name, value in plain_arrays(arrays, f"the {what}").items():
        shape.check(value, f"the {what}'s {name!r}", "(silos, d)", "(1, d)", "(d,)")
        yield name, shape.rows(value)


class _Recorder:
    """Stands where a silo's `ask` stands, and writes down what it is asked."""

    def __init__(
        self,
        limits: Limits,
        answer: Answerer,
        shape: Shape,
        planned: tuple[Ask, ...] | None,
        asked: int,
        most: int,
        keep: bool,
    ) -> None:
        self.asks: list[Ask] = []
        self.answers: list[Tensor] = []
        self.count, self._asked, self._most, self._keep = 0, asked, most, keep
        self._limits, self._answer, self._shape, self._planned = limits, answer, shape, planned

    def __call__(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        ask, plain = plain_queries(queries)
        self.asks.append(ask)
        place = len(self.asks) - 1
        if self._planned is not None and self._planned[place : place + 1] != (ask,):
            raise Unplanned
        if self.count + len(plain) > self._most:
            raise Refused(f"it asks on after {self._most} queries, which its numbers do not account for")
        self._limits.check_count(self.count + len(plain), self._asked, self._shape.dimension)
        self._limits.check_ask(ask)
        answers = tuple(self._answered(query) for query in plain)
        return answers if len(answers) > 1 else answers[0]

    def finish(self) -> None:
        """After the message."""
        if self._planned is not None and self._planned != tuple(self.asks):
            raise Unplanned

    def _answered(self, query: PlainQuery) -> Tensor:
        for point in query.points:
            self._shape.check(point, "a point of a query", "(d,)", "(silos, d)")
        if isinstance(query.clip, Tensor) and tuple(query.clip.shape) != (1,):  # the norm of a shared vector
            self._shape.check(query.clip, "clip", "()", "(silos, 1)")
        self._limits.check_clip(query.clip)
        value = self._answer(query, self.count)
        self.count += 1
        if self._keep:
            self.answers.append(value.clone())  # the silo half may write to its own
        return value
