"""Small federations, gates over them, and an algorithm whose silo half can be exchanged after admission."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.mechanisms.mechanism import Mechanism
from fedsim.mechanisms.registry import MECHANISMS
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.nonsmooth import AbsoluteError, HingeLoss
from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Algorithm, Asker, Memory, Public, Query, Round, ServerHalf
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.links import Answered
from fedsim.protocol.plan import Plan
from fedsim.protocol.terms import Terms
from fedsim.simulation.memory_ledger import MemoryLedger
from server.aggregate import weighted
from server.loop import Progress, run
from server.participation import Schedule
from silos.gate import Gate, hold
from silos.seeded_entropy import SeededEntropy

DELTA = 1e-5
LIMITS = Limits()
FALSE_ALARM = 1e-6
"""Every statistical test fails by chance at most this often over seeds; the seeds are fixed."""

Silo = tuple[np.ndarray, np.ndarray]


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


def silos_of(problem: GeneralisedLinear, sizes: Sequence[int], seed: int = 0) -> list[Silo]:
    """Random records with a constant last feature and targets that the problem accepts."""
    rng = np.random.default_rng(seed)
    made = []
    for n in sizes:
        x = rng.normal(size=(n, problem.num_features))
        x[:, -1] = 1
        classes = max(2, problem.num_outputs)
        made.append((x, target_of(problem, rng.normal(size=n), rng.integers(classes, size=n))))
    return made


def target_of(problem: GeneralisedLinear, real: np.ndarray, label: np.ndarray) -> np.ndarray:
    return real if isinstance(problem, LinearRegression | AbsoluteError) else label.astype(float)


def names_of(count: int) -> list[str]:
    return [f"silo{i}" for i in range(count)]


def public_of(
    sizes: Sequence[int], weights: Sequence[float] | None = None, dtype: torch.dtype = torch.float64
) -> Public:
    n = torch.tensor(sizes, dtype=dtype)
    p = n / n.sum() if weights is None else torch.tensor(weights, dtype=dtype)
    return Public(tuple(names_of(len(sizes))), n, p, torch.zeros(len(sizes), dtype=dtype))


def plan_of(
    algorithm: Algorithm, problem: GeneralisedLinear, sizes: Sequence[int], dtype: torch.dtype = torch.float64
) -> Plan:
    return dry_run(algorithm, problem, public_of(sizes, dtype=dtype), 0, LIMITS).plan


def open_gate(
    data: Sequence[Silo],
    problem: GeneralisedLinear,
    algorithm: Algorithm,
    *,
    epsilon: float | Sequence[float] = 1.0,
    mechanism: str | Mechanism = "gaussian",
    rounds: Sequence[Sequence[int]] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    limits: Limits = LIMITS,
    dtype: torch.dtype = torch.float64,
    plan: Plan | None = None,
    entropy: Any = None,
) -> Gate:
    """A gate over `data`. Budget infinity clips but adds no noise, which shows what the noise hides."""
    sizes = [len(target) for _, target in data]
    names = names_of(len(data)) if names is None else names
    plan = plan_of(algorithm, problem, sizes, dtype) if plan is None else plan
    budgets = [epsilon] * len(data) if isinstance(epsilon, float | int) else list(epsilon)
    own = [range(len(plan.rounds))] * len(data) if rounds is None else rounds
    terms = [Terms(*each) for each in zip(names, sizes, budgets, [DELTA] * len(data), own, strict=True)]
    entropy = SeededEntropy(seed, 0, names, ["a test's run"] * len(names)) if entropy is None else entropy
    return Gate(
        hold(data, problem, dtype),
        problem,
        algorithm,
        plan,
        terms,
        MECHANISMS[mechanism] if isinstance(mechanism, str) else mechanism,
        entropy,
        [MemoryLedger() for _ in terms],
        limits,
        dtype,
    )


class Unrepeatable:
    """Entropy as a deployed silo has it: no stream is ever seen twice."""

    def __init__(self) -> None:
        self._used = 0

    def __getattr__(self, name: str) -> Any:
        self._used += 1
        return getattr(SeededEntropy(self._used, 0, ["silo0"], ["run"]), name)


@dataclass(frozen=True)
class GateLink:
    """The server loop's way to one gate."""

    gate: Gate

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        return Answered(members, self.gate.answer(round_index, broadcast, members))


def drive(
    gate: Gate, algorithm: Algorithm, problem: GeneralisedLinear, public: Public, rounds: Schedule
) -> list[Progress]:
    """Run the server loop against a gate to the end."""
    return list(run(algorithm, problem, public, 0, GateLink(gate), rounds, weighted))


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


SiloHalf = Callable[[Tensor, Asker, Memory], Mapping[str, Tensor]]


class Switch:
    """Holds a silo half that a test exchanges after the plan has been admitted."""

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
    """A silo half of one query; a gradient difference is taken against the zero vector."""

    def half(w: Tensor, ask: Asker, memory: Memory) -> Mapping[str, Tensor]:
        points = (w,) if statistic == "gradient" else (w, torch.zeros_like(w))
        return {"g": ask(Query(statistic, points, clip, batch, noise_ratio))}

    return half


def scripted(half: SiloHalf, num_rounds: int = 2) -> Scripted:
    return Scripted(Switch(half), num_rounds)
