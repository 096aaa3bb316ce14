"""The contract: an algorithm is a coroutine (server method) and a message (silo method).

The server method yields a `Round` for every communication round and is sent back the aggregate. The
silo method never sees a record: it gets noisy means through `ask`, and whatever it computes from them
and from the broadcast is post-processing. One gate therefore carries the whole privacy claim.

Parameters are one flat vector. Every tensor is (..., d) and algorithms use only arithmetic that
broadcasts over the leading axes, so that the same lines serve one silo, shape (1, d), and a cohort
of co-hosted silos, shape (silos, d).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from collections.abc import Generator as Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, cast, overload

from numpy.random import Generator

from fedsim.protocol.batch import Batch
from fedsim.protocol.query import Query as Query
from fedsim.protocol.query import Scalar as Scalar
from fedsim.protocol.unit import RECORD, Unit

if TYPE_CHECKING:
    from torch import Tensor

Message = Mapping[str, "Tensor"]
"""{name: tensor}: a broadcast, each (d,), or what the silos send, each (silos, d)."""


@dataclass(frozen=True)
class Round:
    """One communication round."""

    broadcast: Message  # what every participating silo receives; each tensor (d,)
    answer: Tensor  # the model that the server would return now, (d,): evaluated, never sent
    participants: Literal["resample", "hold"] = "resample"  # silos are drawn anew, or the last ones kept
    clip: float | None = None  # where it is chosen as the run goes: reported, never sent as such


@dataclass(frozen=True)
class Public:
    """What is public about the federation: names, n_i, weights p_i (summing to 1), noise multipliers z_i; and
    whether noise is that of a sum over silos (secure aggregation); and the unit that it hides.
    """

    names: tuple[str, ...]
    sizes: Tensor
    weights: Tensor
    noise_multipliers: Tensor
    summed: bool = False
    unit: Unit = RECORD

    def drawn(self, batch: Batch) -> Tensor:
        """K_i of such a batch, float64."""
        return self.sizes.double().new_tensor([batch.size(n) for n in self.sizes.tolist()])

    def noise(self, query: Query) -> float:
        """Standard deviation of the noise on the silos' weighted mean answer to a query. A sum has the noise
        of the silo whose records weigh most.
        """
        moved = query.noise_ratio * self.unit.spread(query.statistic, query.options) * float(query.clip)
        rates, z = self.weights.double() / self.drawn(query.batch), self.noise_multipliers.double()
        return moved * float(z.min() * rates.max() if self.summed else (rates * z).norm())


class PublicProblem(Protocol):
    """The public part of the objective F0 + f1: an algorithm takes either `project` and
    `public_gradient`, or `prox`. Everything acts on the last axis.
    """

    @property
    def dimension(self) -> int:
        """d, the length of the parameter vector."""

    def start(self, seed: int) -> Tensor:
        """Where a run begins before projection, (d,): public, and the same for the same seed."""

    def project(self, w: Tensor) -> Tensor:
        """Euclidean projection on the constraint set; (..., d) to (..., d)."""

    def prox(self, v: Tensor, step: Scalar) -> Tensor:
        """argmin_y step f1(y) + |y - v|^2 / 2 over the constraint set; (..., d) to (..., d)."""

    def public_gradient(self, w: Tensor) -> Tensor:
        """A subgradient of f1 at w, added after `ask` and never clipped with a record's term."""

    def descend(self, w: Tensor, gradient: Tensor, step_size: Scalar) -> Tensor:
        """project(w - step_size (gradient + public_gradient(w)))."""


class Asker(Protocol):
    """Answers queries on one draw of the batch: a tensor (silos, d) for one, a tuple for several."""

    @overload
    def __call__(self, query: Query, /) -> Tensor: ...
    @overload
    def __call__(self, first: Query, second: Query, /, *more: Query) -> tuple[Tensor, ...]: ...


class Combined(dict[str, "Tensor"]):
    """What a round gives: {name: (d,)}, each sum_i a_i m_i over the M silos that answered, a_i = N p_i / M.
    `share` is M / N; times a sum it is sum_i p_i m_i over those that answered.
    """

    def __init__(self, sums: Mapping[str, Tensor], share: float) -> None:
        super().__init__(sums)
        self.share = share


ServerHalf = Coroutine[Round, Combined, "Tensor"]

Memory = MutableMapping[str, "Tensor"]


class Algorithm(Protocol):
    """A frozen dataclass of public numbers with two methods.

    `linear`: whether a silo's message is an affine function of its noisy answers whose coefficients
    are public and the same for every silo. Only then can a mechanism that sees sums of messages,
    and no single silo's, serve it. A class may also say `any_size: ClassVar[bool] = True`: the arrays that it
    sends, keeps and returns may then have other sizes than d. With `own: ClassVar[str] = "v"` a silo's model
    is the answer plus its row of `memory["v"]`, which is in no message; a method `beside()` of such a class
    gives algorithms of the same plan to compare with: {"one": of one model, "alone": of each silo by itself}.
    """

    linear: ClassVar[bool]

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Yield rounds, be sent what their messages sum to, {name: (d,)}, return the model (d,)."""

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """One round's message, {name: (silos, d)}.

        `memory` is the silo's own state between rounds, {name: (silos, d)}: zeros at first, made
        only of broadcasts and noisy answers, and kept only when the reply is.
        """


class Traits(NamedTuple):
    """What fedsim reads of an algorithm, its class or its section where they have it; here are the defaults.

    The first three are explained by `Algorithm`; the others are numbers of this name, as fields have them.
    """

    any_size: bool = False
    own: str | None = None
    beside: Callable[[], Mapping[str, Algorithm]] = dict
    num_rounds: Any = None  # a section's may be `auto`
    clip_norm: Any = None
    step_size: Scalar | None = None
    smoothness: float | None = None
    batch: Batch | None = None  # None: it asks for every record
    local_steps: int = 1
    noise_decay: float = 1.0


def traits(algorithm: object) -> Traits:
    """The traits of an algorithm, which may be an object of any class."""
    return Traits(**{name: getattr(algorithm, name) for name in Traits._fields if hasattr(algorithm, name)})


class Wrapper:
    """An algorithm around the algorithm `inner`: what it does not say or do itself, that one does."""

    linear: ClassVar[bool]
    inner: Algorithm

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # of an object that is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def beside(self) -> Mapping[str, Algorithm]:
        """The algorithms that own models are compared with, in the same wrapper."""
        others = traits(self.inner).beside().items()
        return {name: cast(Algorithm, replace(cast(Any, self), inner=other)) for name, other in others}

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The algorithm's."""
        return self.inner.server(w, problem, public, rng)

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """The algorithm's."""
        return self.inner.silo(problem, broadcast, ask, memory)


def innermost(algorithm: object) -> object:
    """The algorithm, or its class, that is in all wrappers."""
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.inner
    return algorithm


def relayed(
    rounds: ServerHalf,
    sent: Callable[[Round], Round] = lambda step: step,
    heard: Callable[[Combined], Combined] = lambda sums: sums,
) -> ServerHalf:
    """Yield the rounds of another server method, each changed by `sent`, send it what they give, changed by
    `heard`, and return its model: what a wrapper does, by `yield from`.
    """
    sums: Combined | None = None
    while True:
        try:
            step = next(rounds) if sums is None else rounds.send(sums)
        except StopIteration as stop:
            return cast("Tensor", stop.value)
        sums = heard((yield sent(step)))
