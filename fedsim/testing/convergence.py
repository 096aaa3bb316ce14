"""Without noise, an algorithm finds the optimum, stays there, and sends nothing that must not be scaled.

The optima of strongly convex problems are computed without the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from fedsim.common.seeds import server_rng
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Algorithm, Combined, Public, ServerHalf
from fedsim.testing.federations import (
    Example,
    Silo,
    all_take_part,
    drive,
    open_gate,
    plan_of,
    public_of,
    require,
    silos_of,
)
from server.aggregate import coefficients, combine
from silos.front.served import Served

SIZES = (30, 45, 60)
WEIGHTS = (0.6, 0.3, 0.1)
CASES = ("logistic", "softmax", "linear", "linear in a ball")
_RADIUS = 0.3


@dataclass(frozen=True)
class Case:
    """Three silos of one problem."""

    problem: GeneralisedLinear
    data: list[Silo]
    optimum: np.ndarray  # (d,)
    smoothness: float  # L of the objective

    def distance(self, w: Tensor) -> float:
        """The L2 distance to the optimum."""
        return float(np.linalg.norm(w.numpy() - self.optimum))


@cache
def case_of(name: str, weights: Sequence[float] = WEIGHTS) -> Case:
    """One of `CASES`; the optimum depends on the silos' weights."""
    l2 = 0.0 if name.startswith("linear") else 0.2
    composite = Composite(l2=l2, constraint=L2Ball(_RADIUS)) if name.endswith("ball") else Composite(l2=l2)
    kind = LogisticRegression if name == "logistic" else LinearRegression
    softmax = name == "softmax"
    problem = SoftmaxRegression(4, 3, composite) if softmax else kind(4, composite=composite)
    data = silos_of(problem, SIZES, seed=5)
    if isinstance(problem, LinearRegression):
        slope = np.array([0.5, -0.3, 0.2, 0.1])
        data = [(x, x @ slope + 0.3 * y) for x, y in data]
    x, y, share = pooled(data, weights)
    curvature = float(np.linalg.eigvalsh(x.T @ (share[:, None] * x))[-1])
    if isinstance(problem, LinearRegression):
        radius = _RADIUS if name.endswith("ball") else np.inf
        return Case(problem, data, _linear_optimum(x, y, share, radius), curvature)
    return Case(problem, data, _entropy_optimum(x, y, share, l2), curvature / (3 if softmax else 2) + l2)


def pooled(data: Sequence[Silo], weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All records, each with its weight p_i / n_i in the objective."""
    share = [np.full(len(y), p / len(y)) for p, (_, y) in zip(weights, data, strict=True)]
    return np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data]), np.concatenate(share)


def _linear_optimum(x: np.ndarray, y: np.ndarray, share: np.ndarray, radius: float) -> np.ndarray:
    """Normal equations; on the sphere, the multiplier at which the solution has length `radius`."""
    gram, moment = x.T @ (share[:, None] * x), x.T @ (share * y)

    def solution(multiplier: float) -> np.ndarray:
        return np.asarray(np.linalg.solve(gram + multiplier * np.eye(len(gram)), moment))

    if np.linalg.norm(solution(0)) <= radius:
        return solution(0)
    return solution(optimize.brentq(lambda m: np.linalg.norm(solution(m)) - radius, 0, 1e3, xtol=1e-14))


def _entropy_optimum(x: np.ndarray, y: np.ndarray, share: np.ndarray, l2: float) -> np.ndarray:
    """The optimum of the multinomial (two classes: binomial) log loss plus l2 / 2 |w|^2, by scikit-learn."""
    from sklearn.linear_model import LogisticRegression as SkLogisticRegression  # audits do without

    fitted = SkLogisticRegression(C=1 / l2, fit_intercept=False, solver="newton-cholesky", tol=1e-13)
    return np.asarray(fitted.fit(x, y, sample_weight=share).coef_.T.ravel())


def reaches(example: Example, name: str) -> None:
    """It comes within the example's tolerance of the optimum of p_i, and started far from it."""
    case, nearest = case_of(name), np.inf
    apart = float(np.linalg.norm(case_of(name, (1 / 3,) * 3).optimum - case.optimum))
    require(
        apart > 2 * example.tolerance,
        f"the tolerance {example.tolerance:g} is too wide to tell the silos' weights apart: take less than "
        f"{apart / 2:.2g}",
    )
    for step in example.steps:
        answers = answers_of(case, example.convergent(step / case.smoothness))
        nearest = min(nearest, case.distance(example.estimate(answers)))
        if nearest <= example.tolerance:
            break
    start = case.distance(answers[0])
    require(
        nearest <= example.tolerance,
        f"it ends {nearest:.3g} from the optimum, and began {start:.3g} from it; it must come within "
        f"{example.tolerance:g}",
    )
    require(start > 5 * example.tolerance, f"it begins {start:.3g} from the optimum: that shows nothing")


def keeps(example: Example, name: str) -> None:
    """Started at the optimum, it ends there."""
    case, nearest, public = case_of(name), np.inf, public_of(SIZES, WEIGHTS)
    for step in example.steps:
        algorithm = example.convergent(step / case.smoothness)
        gate = open_gate(case.data, case.problem, algorithm, epsilon=np.inf, mechanism="none")
        coroutine = algorithm.server(torch.from_numpy(case.optimum), case.problem, public, server_rng(0))
        *_, (_, model) = _run(coroutine, gate, public, lambda r: range(len(SIZES)))
        nearest = min(nearest, case.distance(model))
        if nearest <= example.tolerance:
            return
    raise AssertionError(f"it starts at the optimum and ends {nearest:.3g} from it")


def may_be_scaled(example: Example) -> None:
    """At the optimum of every silo, without noise, no coefficient moves the model.

    A message that held a model, or a public estimate, would move it: coefficients need not sum to 1.
    """
    problem, sizes, truth = LinearRegression(3), (20, 30, 40, 50), np.array([0.5, -0.2, 0.1])
    data = [(x, x @ truth) for x, _ in silos_of(problem, sizes, seed=1)]
    algorithm = example.short(FULL)
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    public = public_of(sizes, (1 / 6, 1 / 6, 1 / 6, 1 / 2))
    coroutine = algorithm.server(torch.from_numpy(truth), problem, public, server_rng(0))
    for where, answer in _run(coroutine, gate, public, lambda r: [r % 4]):
        moved = float(np.abs(answer.numpy() - truth).max())
        require(
            moved <= 1e-12,
            f"{where} it has moved by {moved:.3g} though every gradient is 0: a message is scaled by "
            "N p_i / M, so it must be a gradient or a step, and never a model",
        )


def answers_of(case: Case, algorithm: Algorithm) -> list[Tensor]:
    """The answers before every round of a noise-free run, and at its end."""
    plan = plan_of(algorithm, case.problem, SIZES)
    gate = open_gate(case.data, case.problem, algorithm, epsilon=np.inf, mechanism="none", plan=plan)
    public, rounds = public_of(SIZES, WEIGHTS), all_take_part(plan, len(SIZES))
    return [progress.answer for progress in drive(gate, algorithm, case.problem, public, rounds)]


def _run(
    coroutine: ServerHalf, gate: Served, public: Public, members_of: Callable[[int], Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """When, and the answer then: before every round, which has its own members, and at the end."""
    step, silos = next(coroutine), len(public.names)
    for r in count():
        yield f"by round {r}", step.answer
        members = members_of(r)
        shares = coefficients(public.weights, members, silos)
        reply = gate.answer(r, step.broadcast, members)
        try:
            step = coroutine.send(Combined(combine(reply, shares), len(members) / silos))
        except StopIteration as stop:
            yield "at its end", stop.value
            return
