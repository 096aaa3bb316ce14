"""Small federations, gates over them, and an algorithm whose silo method can be exchanged after admission."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.data.federation import Silos, SiloSplit
from fedsim.problems.glm import (
    AbsoluteError,
    GeneralisedLinear,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Poisson, Subsample, WithReplacement
from fedsim.protocol.batch import Part as PartBatch
from fedsim.protocol.contract import Algorithm, Asker, Memory, Public, Query, Round, ServerHalf
from fedsim.protocol.limits import Limits
from fedsim.protocol.rows import Cohort
from fedsim.testing.federations import DELTA as DELTA
from fedsim.testing.federations import DirectLink as DirectLink
from fedsim.testing.federations import Silo as Silo
from fedsim.testing.federations import drive as drive
from fedsim.testing.federations import names_of as names_of
from fedsim.testing.federations import open_gate as open_gate
from fedsim.testing.federations import plan_of as plan_of
from fedsim.testing.federations import public_of as public_of
from fedsim.testing.federations import silos_of as silos_of
from fedsim.testing.federations import target_of as target_of
from server.participation import rounds_of_silos
from silos.vault.entropy import SeededEntropy

LIMITS = Limits()
FALSE_ALARM = 1e-6
"""Every statistical test fails by chance at most this often over seeds; the seeds are fixed."""


def problems(num_features: int) -> dict[str, GeneralisedLinear]:
    return {
        "logistic": LogisticRegression(num_features),
        "softmax": SoftmaxRegression(num_features, 3),
        "linear": LinearRegression(num_features),
        "hinge": HingeLoss(num_features),
        "hinge, smoothed": HingeLoss(num_features, smoothing=1e9),
        "absolute": AbsoluteError(num_features),
        "absolute, smoothed": AbsoluteError(num_features, smoothing=1e9),
    }


def iterates(
    algorithm: Algorithm,
    problem: GeneralisedLinear,
    data: Sequence[Silo],
    *,
    rounds: Sequence[Sequence[int]] | None = None,
    weights: Sequence[float] | None = None,
    epsilon: float = math.inf,
) -> list[Tensor]:
    """What the server would return before each round, and at the end; without noise for infinity.

    Args:
        rounds: the silos of each round; all of them by default.
        weights: by size by default.
    """
    sizes = [len(target) for _, target in data]
    plan = plan_of(algorithm, problem, sizes)
    rounds = [range(len(data))] * len(plan.rounds) if rounds is None else rounds
    mechanism, own = "none" if epsilon == math.inf else "gaussian", rounds_of_silos(rounds, len(data))
    gate = open_gate(data, problem, algorithm, epsilon=epsilon, mechanism=mechanism, rounds=own, plan=plan)
    return [event.answer for event in drive(gate, algorithm, problem, public_of(sizes, weights), rounds)]


def alike(data: Sequence[Silo], problem: GeneralisedLinear, algorithm: Algorithm, *points: Tensor) -> Tensor:
    """What silos answer to each point that all draw as `silo0` does; without noise, (points, silos, d)."""
    entropy = SeededEntropy(0, 0, names_of(1) * len(data), ["a test's run"] * len(data))
    gate = open_gate(data, problem, algorithm, epsilon=math.inf, entropy=entropy)
    return torch.stack([gate.answer(r, {"w": point})["g"] for r, point in enumerate(points)])


class Unrepeatable:
    """Entropy as a deployed silo has it: no stream is ever seen twice."""

    def __init__(self) -> None:
        self._used = 0

    def __getattr__(self, name: str) -> Any:
        self._used += 1
        return getattr(SeededEntropy(self._used, 0, ["silo0"], ["run"]), name)


def divisor(batch: Batch, n: int) -> float:
    """K by its definition, written apart from the code under test."""
    match batch:
        case Full():
            return n
        case Subsample(fraction=q) | WithReplacement(fraction=q):
            return max(1, round(q * n))
        case Poisson(fraction=q):
            return q * n
        case Fresh(fraction=q):
            return max(1, math.floor(q * n + 1e-9))
        case PartBatch(start=start, stop=stop):
            return math.floor(stop * n + 1e-9) - math.floor(start * n + 1e-9)


SiloHalf = Callable[[Tensor, Asker, Memory], Mapping[str, Tensor]]


class Switch:
    """Holds a silo method that a test exchanges after the plan has been admitted."""

    def __init__(self, half: SiloHalf) -> None:
        self.half = half


@dataclass(frozen=True)
class Scripted:
    """Broadcasts a zero vector every round; what a silo asks for is up to the switch."""

    switch: Switch
    num_rounds: int = 2

    def server(self, w: Tensor, problem: Any, public: Public, rng: np.random.Generator) -> ServerHalf:
        for _ in range(self.num_rounds):
            yield Round({"w": w}, answer=w)
        return w

    def silo(
        self, problem: Any, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        return self.switch.half(broadcast["w"], ask, memory)


def asking(
    statistic: str = "gradient", clip: float = 1.0, batch: Batch = FULL, noise_ratio: float = 1.0
) -> SiloHalf:
    """A silo method of one query; a gradient difference is taken against the zero vector."""

    def half(w: Tensor, ask: Asker, memory: Memory) -> Mapping[str, Tensor]:
        points = (w,) if statistic == "gradient" else (w, torch.zeros_like(w))
        return {"g": ask(Query(statistic, points, clip, batch, noise_ratio))}

    return half


def scripted(half: SiloHalf, num_rounds: int = 2) -> Scripted:
    return Scripted(Switch(half), num_rounds)


def together(silos: Sequence[SiloSplit]) -> Silos:
    """Silos' records in one array each, as a host takes them."""
    names, train, test = zip(*silos, strict=True)
    return Silos(names, Cohort.of(train), Cohort.of(test))
