"""One pass of the dry run: an algorithm's halves against answers that are made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from torch import Tensor

from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Combined, Public, PublicProblem
from fedsim.protocol.halves import Played, ServerHalf, Shape, SiloHalf, Step
from fedsim.protocol.limits import Limits
from fedsim.protocol.memory import CohortMemory
from fedsim.protocol.plain import PlainQuery
from fedsim.protocol.plan import Ask
from fedsim.protocol.replay import replay, same

Draw = Callable[[PlainQuery, Shape], Tensor]
"""Makes up the answer to a query, (silos, d)."""

_CLOSELY = 3
"""As many rounds of a kind are looked at closely."""

_MOST_KEPT = 2**22
"""Numbers in the answers of a round that is looked at closely: no offer must fill a silo's memory."""


class Walk:
    """Goes from round to round.

    Attributes:
        step: the round that it stands at; None at the end.
        names: of the last message's arrays, sorted.
        memory: the silos'.
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
        draw: Draw,
    ) -> None:
        dtype = public.weights.dtype
        self._shape, self._draw, self._blame = Shape(silos, problem.dimension, dtype), draw, Blame(algorithm)
        self._server = ServerHalf(algorithm, problem, public, seed, self._shape)
        self._silo = SiloHalf(algorithm, problem, limits, most)
        self._mirror = partial(SiloHalf, algorithm, problem, limits, most)
        self._kinds: Counter[object] = Counter()
        self._round, self._close = -1, False
        self._sent: Combined | None = None
        self.memory = CohortMemory(silos, problem.dimension, dtype)
        self.step: Step | None = None
        self.names: tuple[str, ...] = ()

    def next(self) -> None:
        """Advance the server half.

        Raises:
            Refused: it breaks the contract.
            PluginError: it raises.
        """
        where = self._server.where
        last, self.step = self.step, self._server.next(self._sent)
        self._round += 1
        if last is not None and self._close:
            self._check_in_place(last, where, "it broadcast")

    def play(self, planned: tuple[Ask, ...] | None, closely: bool = False) -> tuple[Ask, ...]:
        """The silos' half of the round; what it asks.

        Args:
            planned: what it must ask; None: anything.
            closely: play rounds of a new kind again, unless their answers are too large to keep.

        Raises:
            Unplanned: it asks something else.
            Refused: it breaks the contract or a limit.
            PluginError: it raises.
        """
        step = self.step
        assert step is not None
        closely = closely and self._fits(planned or ())
        played = self._silo.play(
            self._round, step.broadcast, self.memory, self._answer, self._shape, planned, closely
        )
        self.names = tuple(sorted(played.message))
        self._close = closely and self._is_new(step, played)
        if self._close:
            self._check_in_place(step, f"silo half, round {self._round}", "it was sent")
            replay(self._blame, self._mirror(), self._round, step.broadcast, self.memory, played, self._shape)
        self.memory = played.memory
        self._sent = Combined({name: value.mean(0) for name, value in played.message.items()}, 1.0)
        return played.asks

    def _answer(self, query: PlainQuery, number: int) -> Tensor:
        return self._draw(query, self._shape)

    def _fits(self, planned: tuple[Ask, ...]) -> bool:
        each = self._shape.silos * self._shape.dimension
        return each * sum(len(ask.queries) for ask in planned) <= _MOST_KEPT

    def _is_new(self, step: Step, played: Played) -> bool:
        kind = played.asks, tuple(step.broadcast), self.names, tuple(played.memory)
        self._kinds[kind] += 1
        return self._kinds[kind] <= _CLOSELY

    def _check_in_place(self, step: Step, where: str, what: str) -> None:
        for name, value in step.originals.items():
            if not same(value, step.broadcast[name]):
                raise self._blame.breach(
                    where,
                    f"it changes the {name!r} that {what}: w -= g does, w = w - g makes a new tensor",
                )
