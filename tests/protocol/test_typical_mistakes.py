"""What somebody writes who writes an algorithm for the first time, and the one line that it gives."""

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
    """Minibatch SGD without a mistake; each mistake overrides a half."""

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

    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        answer: Tensor = ask(Query("gradient", (w,), clip))
        return answer

    def message(self, g: Tensor) -> Any:
        return g


MISTAKES: dict[str, tuple[type[Right], str]] = {}


def mistake(title: str, expected: str) -> Callable[[type[Right]], type[Right]]:
    def register(kind: type[Right]) -> type[Right]:
        MISTAKES[title] = dataclass(frozen=True)(kind), expected
        return kind

    return register


SILO, SERVER = r"silo half, round 0: ", r"server half, before the first round: "
LATER = r"server half, after round 0: "
HERE = r"test_typical_mistakes\.py"


@mistake("no clip", SILO + rf"raised TypeError: .*'clip' \({HERE}:\d+\); a query is Query\(")
class NoClip(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        return {"g": ask(Query("gradient", (broadcast["w"],)))}  # type: ignore[call-arg]


@mistake("raises in the silo half", SILO + rf"raised ZeroDivisionError: division by zero \({HERE}:\d+\)")
class RaisesInSilo(Right):
    def message(self, g: Tensor) -> Any:
        return g * (1 / 0)


@mistake("raises in the server half", LATER + rf"raised ValueError: no such thing \({HERE}:\d+\)")
class RaisesInServer(Right):
    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        raise ValueError("no such thing")


@mistake("raises before it begins", SERVER + "raised AttributeError: .*'learning_rate'")
class RaisesAtOnce(Right):
    def round(self, w: Tensor, r: int) -> Any:
        return self.learning_rate  # type: ignore[attr-defined]


@mistake(
    "a message of another shape",
    SILO + r"the message's 'g' is \(1, 2\) torch.float64; it must be \(silos, d\)",
)
class Cut(Right):
    def message(self, g: Tensor) -> Any:
        return g[..., :2]


@mistake(
    "a number for each silo", SILO + r"the message's 'g' is \(1,\) torch.float64; it must be \(silos, d\)"
)
class Norm(Right):
    def message(self, g: Tensor) -> Any:
        return g.norm(dim=-1)


@mistake("the wrong key of the sums", LATER + r"raised KeyError: 'gradient' .*; it was given g")
class WrongKey(Right):
    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        return w - mean["gradient"]


@mistake("the wrong key of the broadcast", SILO + r"raised KeyError: 'model' .*; it was given w")
class WrongBroadcast(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        return {"g": self.gradient(ask, broadcast["model"])}


@mistake("a NumPy array", SILO + "'g' of the message is ndarray, not a plain tensor")
class NumPyMessage(Right):
    def message(self, g: Tensor) -> Any:
        return g.numpy()


@mistake("a float", SILO + "'g' of the message is float, not a plain tensor")
class FloatMessage(Right):
    def message(self, g: Tensor) -> Any:
        return 0.5


@mistake("an int", SILO + "'g' of the message is int, not a plain tensor")
class IntMessage(Right):
    def message(self, g: Tensor) -> Any:
        return 1


@mistake("a tensor that is not named", SILO + "the message is Tensor, not named tensors")
class Unnamed(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        return self.gradient(ask, broadcast["w"])


@mistake("no message", SILO + "the message is NoneType, not named tensors")
class Silent(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        self.gradient(ask, broadcast["w"])


@mistake("a message of another type", SILO + r"the message's 'g' is \(1, 3\) torch.float32; .* torch.float64")
class SinglePrecision(Right):
    def message(self, g: Tensor) -> Any:
        return g.float()


@mistake("returns and does not yield", SERVER + r"it returned Tensor; it must `mean = yield Round\(")
class NoGenerator(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        return w


@mistake("yields the model", SERVER + r"it yielded Tensor, not a Round; it must")
class YieldsModel(Right):
    def round(self, w: Tensor, r: int) -> Any:
        return w


@mistake("yields twice", LATER + r"it yielded NoneType, not a Round; it must")
class YieldsTwice(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        for _ in range(self.num_rounds):
            yield Round({"w": w}, answer=w)
            mean = yield
            w = w - mean["g"]
        return w


@mistake("never yields", "server half: it yields no round, so nothing would be learned")
class NeverYields(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        for _ in range(0):
            yield Round({"w": w}, answer=w)
        return w


@mistake("returns no model", r"server half, after round 3: the model that it returns is None; it must")
class NoModel(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        yield from super().server(w, problem, public, rng)


@mistake(
    "an answer of another shape", SERVER + r"the round's answer is \(1, 3\) torch.float64; it must be \(d,\)"
)
class WrongAnswer(Right):
    def round(self, w: Tensor, r: int) -> Any:
        return Round({"w": w}, answer=w[None])


@mistake(
    "a broadcast of another shape", SERVER + r"the broadcast's 'w' is \(\) torch.float64; it must be \(d,\)"
)
class ScalarBroadcast(Right):
    def round(self, w: Tensor, r: int) -> Any:
        return Round({"w": w.sum()}, answer=w)


@mistake("a message of NaN", SILO + "the message's 'g' is not finite, though all .* given is")
class NaN(Right):
    def message(self, g: Tensor) -> Any:
        return (g - 10).sqrt()


@mistake(
    "a message that counts the silos", SILO + "the message's 'g' is another for a silo alone than among 2"
)
class CountsSilos(Right):
    def message(self, g: Tensor) -> Any:
        return g / len(g)


@mistake("a message averaged over the silos", SILO + "the message's 'g' is another .*over the last axis only")
class Averaged(Right):
    def message(self, g: Tensor) -> Any:
        return g.mean(0)


@mistake("a norm over all silos", SILO + "the message's 'g' is another for a silo alone")
class NormOfAll(Right):
    def message(self, g: Tensor) -> Any:
        return g / (1 + g.norm())


@mistake(
    "double precision that gets lost",
    LATER + r"the broadcast's 'w' is \(3,\) torch.float32; .* torch.float64",
)
class Drifts(Right):
    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        return (w - mean["g"]).float()


@mistake("a broadcast changed in the silo half", SILO + "it changes the 'w' that it was sent: w -= g does")
class ChangesBroadcast(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        g = self.gradient(ask, broadcast["w"])
        broadcast["w"] -= 0.1
        return {"g": g}


@mistake("a broadcast changed in the server half", LATER + "it changes the 'w' that it broadcast")
class ChangesOwn(Right):
    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        w -= 0.1 * mean["g"]
        return w


@mistake("state on a frozen self", SILO + "raised FrozenInstanceError: .*; keep what lasts in memory")
class StateOnFrozen(Right):
    def message(self, g: Tensor) -> Any:
        self.last = g  # type: ignore[misc]
        return g


@mistake(
    "state on self",
    SILO + r"the message's 'g' is another when it runs again on the same, and it changes self\.seen",
)
class StateOnSelf(Right):
    seen: list[int] = field(default_factory=list)

    def message(self, g: Tensor) -> Any:
        self.seen.append(1)
        return g * len(self.seen)


@mistake(
    "state on self in the server half", r"in its rounds: it changes self\.seen; what lasts belongs in memory"
)
class ServerState(Right):
    seen: list[int] = field(default_factory=list)

    def step(self, w: Tensor, mean: Mapping[str, Tensor], r: int) -> Tensor:
        self.seen.append(1)
        return super().step(w, mean, r)


@mistake(
    "a random message",
    SILO + "the message's 'g' is another when it runs again on the same; .*randomness in rng",
)
class RandomMessage(Right):
    def message(self, g: Tensor) -> Any:
        return g + torch.randn_like(g)


@mistake(
    "asks that depend on answers", "round 0: the queries depend on the answers, so the plan cannot be priced"
)
class AsksByAnswer(Right):
    def message(self, g: Tensor) -> Any:
        return g

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        g = self.gradient(ask, broadcast["w"])
        return {"g": self.gradient(ask, broadcast["w"]) if bool((g != 0).any()) else g}


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


@mistake("asks until the answer is small", "round 0: the queries depend on the answers")
class AsksUntilSmall(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        g = super().gradient(ask, w)
        while g.norm() > 1e-9:
            g = super().gradient(ask, w)
        return g


@mistake(
    "asks until the answer is large", SILO + "it asks on after 500 queries, which its numbers do not account"
)
class AsksUntilLarge(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        g = super().gradient(ask, w)
        while g.norm() < 1e-9:
            g = super().gradient(ask, w)
        return g


@mistake("asks in another order", SILO + "it asks something else when it runs again on the same")
class AnyOrder(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        calls.append(1)
        batches = [Subsample(0.5), Subsample(0.25)][:: -1 if len(calls) > 2 else 1]
        return {"g": sum(ask(Query("gradient", (broadcast["w"],), 1.0, batch)) for batch in batches)}


calls: list[int] = []


@mistake("an unknown query", SILO + "statistic 'hessian' is not one of gradient, gradient_difference")
class Hessian(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        answer: Tensor = ask(Query("hessian", (w,), clip))
        return answer


@mistake(
    "a point of another shape",
    SILO + r"a point of a query is \(2,\) torch.float64; it must be \(d,\) or \(silos, d\)",
)
class WrongPoint(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        return super().gradient(ask, w[:2], clip)


@mistake("a point that is no tuple", SILO + "points of a query is Tensor, not tuple")
class OnePoint(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        answer: Tensor = ask(Query("gradient", w, clip))  # type: ignore[arg-type]
        return answer


@mistake("a negative clip", SILO + r"clip is neither 0 nor within")
class NegativeClip(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = -1.0) -> Tensor:
        return super().gradient(ask, w, clip)


@mistake("a clip of another shape", SILO + r"clip is \(3,\) torch.float64; it must be \(\) or \(silos, 1\)")
class ClipPerCoordinate(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        return super().gradient(ask, w, torch.ones_like(w))


@mistake("a clip of NumPy's", SILO + "clip is float32, not a number")
class NumPyClip(Right):
    def gradient(self, ask: Any, w: Tensor, clip: Any = 1.0) -> Tensor:
        return super().gradient(ask, w, np.float32(1.0))


@mistake(
    "memory of another shape", SILO + r"the memory's 'norm' is \(1,\) torch.float64; it must be \(silos, d\)"
)
class WrongMemory(Right):
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        g = self.gradient(ask, broadcast["w"])
        memory["norm"] = g.norm(dim=-1)
        return {"g": g}


@mistake("a wrong word for participants", SERVER + "participants is 'Hold'; it must be 'resample' or 'hold'")
class WrongWord(Right):
    def round(self, w: Tensor, r: int) -> Any:
        return Round({"w": w}, answer=w, participants="Hold")  # type: ignore[arg-type]


@mistake("a number of rounds that is none", SERVER + "raised TypeError: 'float' object cannot be")
class FloatRounds(Right):
    num_rounds: float = 4.0  # type: ignore[assignment]


@mistake(
    "far too many rounds",
    "the plan exceeds the silo's limit of 1000000 rounds: num_rounds is 1e+12".replace("+", r"\+"),
)
class ManyRounds(Right):
    num_rounds: int = 10**12


@mistake(
    "rounds without end", "server half: it goes on after 500 rounds, which its numbers do not account for"
)
class NoEnd(Right):
    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Any:
        while True:
            yield Round({"w": w}, answer=w)


def test_without_a_mistake_there_is_a_plan() -> None:
    assert len(dry_run(Right(), LinearRegression(D), public_of((10, 20)), 0, LIMITS).plan.rounds) == 4


@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_is_one_line_that_says_who_where_and_what(
    title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dryrun, "_UNSTATED", 500)
    kind, expected = MISTAKES[title]
    calls.clear()
    with pytest.raises((Refused, PluginError), match=expected) as caught:
        dry_run(kind(), LinearRegression(D), public_of((10, 20)), 0, LIMITS)  # type: ignore[arg-type]
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
def test_far_too_many_rounds_are_refused_before_the_first(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*given: Any) -> Any:
        raise AssertionError("the server half has begun")

    monkeypatch.setattr(type(algorithm), "server", begun)
    with pytest.raises(Refused, match="limit of 1000000 rounds"):
        dry_run(algorithm, LinearRegression(D), public_of((10, 20)), 0, LIMITS)
