"""Mistakes of a first algorithm, and the one line that each gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.helpers import LIMITS, public_of
from torch import Tensor

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.common.errors import PluginError, Refused
from fedsim.problems.glm import LinearRegression
from fedsim.protocol import dryrun
from fedsim.protocol.batch import Subsample
from fedsim.protocol.contract import Query, Round
from fedsim.protocol.dryrun import dry_run

D = 3


@dataclass(frozen=True)
class Right:
    """Minibatch SGD without a mistake; each mistake overrides a method."""

    linear: ClassVar[bool] = True
    num_rounds: int = 4
    step_size: float = 0.5

    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        for r in range(self.num_rounds):
            w = problem.project(self.step(w, (yield self.round(w, r)), r))
        return w

    def round(self, w: Tensor, r: int) -> Any:
        return Round({"w": w}, answer=w)

    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        return w - self.step_size * mean["g"]

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        return {"g": self.message(self.gradient(ask, broadcast["w"]))}

    def gradient(self, ask: Any, w: Tensor) -> Any:
        return ask(Query("gradient", (w,), 1.0))

    def message(self, g: Tensor) -> Any:
        return g


MISTAKES: dict[str, tuple[type[Right], str]] = {}


def mistake(title: str, expected: str) -> Callable[[type[Right]], type[Right]]:
    def register(kind):
        MISTAKES[title] = dataclass(frozen=True)(kind), expected
        return kind

    return register


def wrong(title: str, expected: str, **changes: Any) -> None:
    """A mistake of one expression: `Right` with another method or number."""
    numbers = {"__annotations__": {name: float for name in changes if name == "num_rounds"}}
    mistake(title, expected)(type("Wrong", (Right,), {**changes, **numbers}))


SILO, SERVER = r"silo method, round 0: ", r"server method, before the first round: "
LATER = r"server method, after round 0: "
MESSAGE, AGAIN = SILO + "the message's 'g' is ", "another when it runs again on the same"
HERE = r"\(test_typical_mistakes\.py:\d+\)"


# Errors that Python raises.


wrong("raises in a silo", SILO + f"raised ZeroDivisionError: .* {HERE}", message=lambda _, g: g * (1 / 0))
wrong("raises in the server", LATER + f"raised ValueError: .* {HERE}", step=lambda *_: int("no number"))
wrong("raises before it begins", SERVER + "raised AttributeError: .*'rate'", round=lambda self, *_: self.rate)
wrong("another sum", LATER + "raised KeyError: 'h' .*; it was given g", step=lambda _, w, mean, r: mean["h"])
wrong(
    "another broadcast",
    SILO + "raised KeyError: 'model' .*; it was given w",
    silo=lambda self, problem, broadcast, ask, memory: {"g": self.gradient(ask, broadcast["model"])},
)
wrong(
    "no clip",
    SILO + rf"raised TypeError: .*'clip' {HERE}; a query is Query\(",
    gradient=lambda _, ask, w: ask(Query("gradient", (w,))),
)
wrong("a broken number of rounds", SERVER + "raised TypeError: 'float' object cannot be", num_rounds=4.0)


# Messages and memory.


wrong(
    "a message cut short",
    MESSAGE + r"\(1, 2\) torch.float64; it must be \(silos, d\)",
    message=lambda _, g: g[:, :2],
)
wrong(
    "a number a silo",
    MESSAGE + r"\(1,\) torch.float64; it must be \(silos",
    message=lambda _, g: g.norm(dim=-1),
)
wrong(
    "a NumPy array",
    SILO + "'g' of the message is ndarray, not a plain tensor",
    message=lambda _, g: g.numpy(),
)
wrong("a float", SILO + "'g' of the message is float, not a plain tensor", message=lambda *_: 0.5)
wrong("an int", SILO + "'g' of the message is int, not a plain tensor", message=lambda *_: 1)
wrong("another type", MESSAGE + r"\(1, 3\) torch.float32; .* torch.float64", message=lambda _, g: g.float())
wrong("NaN", MESSAGE + "not finite, though all .* given is", message=lambda _, g: (g - 10).sqrt())
wrong("counts silos", MESSAGE + "another for a silo alone than among 2", message=lambda _, g: g / len(g))
wrong("averages over silos", MESSAGE + "another .*over the last axis only", message=lambda _, g: g.mean(0))
wrong("a norm over silos", MESSAGE + "another for a silo alone", message=lambda _, g: g / (1 + g.norm()))
wrong("random", MESSAGE + AGAIN + "; .*randomness in rng", message=lambda _, g: g + torch.randn_like(g))
wrong(
    "a tensor that is not named",
    SILO + "the message is Tensor, not named tensors",
    silo=lambda self, problem, broadcast, ask, memory: self.gradient(ask, broadcast["w"]),
)
wrong("no message", SILO + "the message is NoneType, not named tensors", silo=lambda *_: None)


@mistake(
    "memory of another shape", SILO + r"the memory's 'norm' is \(1,\) torch.float64; it must be \(silos, d\)"
)
class WrongMemory(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        g = self.gradient(ask, broadcast["w"])
        memory["norm"] = g.norm(dim=-1)
        return {"g": g}


@mistake("state on a frozen self", SILO + "raised FrozenInstanceError: .*; keep what lasts in memory")
class StateOnFrozen(Right):
    def message(self, g: Tensor) -> Any:
        self.last = g
        return g


@mistake("state on self", MESSAGE + AGAIN + r", and it changes self\.seen")
class StateOnSelf(Right):
    seen: list[int] = field(default_factory=list)

    def message(self, g: Tensor) -> Any:
        self.seen.append(1)
        return g * len(self.seen)


@mistake("a broadcast changed in the silo method", SILO + "it changes the 'w' that it was sent: w -= g does")
class ChangesBroadcast(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        g = self.gradient(ask, broadcast["w"])
        broadcast["w"] -= 0.1
        return {"g": g}


# Rounds, answers and broadcasts.


wrong("yields the model", SERVER + "it yielded Tensor, not a Round; it must", round=lambda _, w, r: w)
wrong(
    "returns and does not yield",
    SERVER + r"it returned Tensor; it must `mean = yield Round\(",
    server=lambda _, w, *rest: w,
)
wrong(
    "an answer of another shape",
    SERVER + r"the round's answer is \(1, 3\) torch.float64; it must be \(d,\)",
    round=lambda _, w, r: Round({"w": w}, answer=w[None]),
)
wrong(
    "a broadcast of another shape",
    SERVER + r"the broadcast's 'w' is \(\) torch.float64; it must be \(d,\)",
    round=lambda _, w, r: Round({"w": w.sum()}, answer=w),
)
wrong(
    "a wrong word for participants",
    SERVER + "participants is 'Hold'; it must be 'resample' or 'hold'",
    round=lambda _, w, r: Round({"w": w}, answer=w, participants="Hold"),
)
wrong(
    "double precision that gets lost",
    LATER + r"the broadcast's 'w' is \(3,\) torch.float32; .* torch.float64",
    step=lambda _, w, mean, r: (w - mean["g"]).float(),
)
wrong(
    "far too many rounds",
    r"the plan exceeds the silo's limit of 1000000 rounds: num_rounds is 1e\+12",
    num_rounds=10**12,
)


@mistake("yields twice", LATER + r"it yielded NoneType, not a Round; it must")
class YieldsTwice(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        for _ in range(self.num_rounds):
            yield Round({"w": w}, answer=w)
            mean = yield
            w = w - mean["g"]
        return w


@mistake("never yields", "server method: it yields no round, so nothing would be learned")
class NeverYields(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        for _ in range(0):
            yield Round({"w": w}, answer=w)
        return w


@mistake("returns no model", r"server method, after round 3: the model that it returns is None; it must")
class NoModel(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        yield from super().server(w, problem, public, rng)


@mistake("a broadcast changed in the server method", LATER + "it changes the 'w' that it broadcast")
class ChangesOwn(Right):
    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        w -= 0.1 * mean["g"]
        return w


@mistake(
    "state on self in the server method",
    r"in its rounds: it changes self\.seen; what lasts belongs in memory",
)
class ServerState(Right):
    seen: list[int] = field(default_factory=list)

    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        self.seen.append(1)
        return super().step(w, mean, r)


@mistake(
    "rounds until the gradient is small", "round 1: the queries depend on the answers, .*has ended by then"
)
class UntilSmall(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        g = torch.ones_like(w)
        while g.norm() > 1e-9:
            g = (yield Round({"w": w}, answer=w))["g"]
        return w


@mistake("rounds until the gradient is large", "round 1: the queries depend on the answers")
class UntilLarge(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        g = torch.zeros_like(w)
        while g.norm() < 1e-9:
            g = (yield Round({"w": w}, answer=w))["g"]
        return w


@mistake(
    "rounds without end", "server method: it goes on after 500 rounds, which its numbers do not account for"
)
class NoEnd(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        while True:
            yield Round({"w": w}, answer=w)


# Queries.


wrong(
    "an unknown query",
    SILO + "statistic 'hessian' is not one of gradient, gradient_difference",
    gradient=lambda _, ask, w: ask(Query("hessian", (w,), 1.0)),
)
wrong(
    "a point of another shape",
    SILO + r"a point of a query is \(2,\) torch.float64; it must be \(d,\) or \(silos, d\)",
    gradient=lambda _, ask, w: ask(Query("gradient", (w[:2],), 1.0)),
)
wrong(
    "a point that is no tuple",
    SILO + "points of a query is Tensor, not tuple",
    gradient=lambda _, ask, w: ask(Query("gradient", w, 1.0)),
)
for title, expected, clip in (
    ("a negative clip", "clip is neither 0 nor within", -1.0),
    (
        "a clip of another shape",
        r"clip is \(3,\) torch.float64; it must be \(\) or \(silos, 1\)",
        torch.ones(3).double(),
    ),
    ("a clip of NumPy's", "clip is float32, not a number", np.float32(1.0)),
):
    wrong(title, SILO + expected, gradient=lambda _, ask, w, clip=clip: ask(Query("gradient", (w,), clip)))


@mistake(
    "asks that depend on answers", "round 0: the queries depend on the answers, so the plan cannot be priced"
)
class AsksByAnswer(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        g = self.gradient(ask, broadcast["w"])
        return {"g": self.gradient(ask, broadcast["w"]) if bool((g != 0).any()) else g}


@mistake("asks until the answer is small", "round 0: the queries depend on the answers")
class AsksUntilSmall(Right):
    def gradient(self, ask: Any, w: Tensor) -> Any:
        g = super().gradient(ask, w)
        while g.norm() > 1e-9:
            g = super().gradient(ask, w)
        return g


@mistake(
    "asks until the answer is large", SILO + "it asks on after 500 queries, which its numbers do not account"
)
class AsksUntilLarge(Right):
    def gradient(self, ask: Any, w: Tensor) -> Any:
        g = super().gradient(ask, w)
        while g.norm() < 1e-9:
            g = super().gradient(ask, w)
        return g


calls: list[int] = []


@mistake("asks in another order", SILO + "it asks something else when it runs again on the same")
class AnyOrder(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        calls.append(1)
        batches = [Subsample(0.5), Subsample(0.25)][:: -1 if len(calls) > 2 else 1]
        return {"g": sum(ask(Query("gradient", (broadcast["w"],), 1.0, batch)) for batch in batches)}


def test_without_a_mistake_there_is_a_plan():
    assert len(dry_run(Right(), LinearRegression(D), public_of((10, 20)), 0, LIMITS).plan.rounds) == 4


@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_is_one_line_that_says_who_where_and_what(title, monkeypatch):
    monkeypatch.setattr(dryrun, "_UNSTATED", 500)
    kind, expected = MISTAKES[title]
    calls.clear()
    with pytest.raises((Refused, PluginError), match=expected) as caught:
        dry_run(kind(), LinearRegression(D), public_of((10, 20)), 0, LIMITS)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert text.startswith(f"algorithm {kind.__name__} (test_typical_mistakes.py), ")
    if isinstance(caught.value, PluginError):
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "algorithm",
    [
        NoisyMinibatchSGD(num_rounds=10**12, step_size=1.0, clip_norm=1.0),
        ProxSVRG(epochs=10**6, inner_steps=10**6, step_size=1.0, clip_norm=1.0, difference_clip=1.0),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_far_too_many_rounds_are_refused_before_the_first(algorithm, monkeypatch):
    def begun(*given):
        raise AssertionError("the server method has begun")

    monkeypatch.setattr(type(algorithm), "server", begun)
    with pytest.raises(Refused, match="limit of 1000000 rounds"):
        dry_run(algorithm, LinearRegression(D), public_of((10, 20)), 0, LIMITS)
