"""Strongly convex problems with optima that are found without the code under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import optimize
from sklearn.linear_model import LogisticRegression as SkLogisticRegression
from torch import Tensor

from fedsim.problems.composite import Composite, L2Ball
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.testing.federations import Silo, silos_of

SIZES = (30, 45, 60)
WEIGHTS = (0.6, 0.3, 0.1)
CASES = ("logistic", "softmax", "linear", "linear in a ball")
_RADIUS = 0.3


@dataclass(frozen=True)
class Case:
    """Three silos of one problem.

    Args:
        optimum: (d,).
        smoothness: L of the objective.
    """

    problem: GeneralisedLinear
    data: list[Silo]
    optimum: np.ndarray
    smoothness: float

    def distance(self, w: Tensor) -> float:
        """The L2 distance to the optimum."""
        return float(np.linalg.norm(w.numpy() - self.optimum))


@cache
def case_of(name: str, weights: Sequence[float] = WEIGHTS) -> Case:
    """One of `CASES`; the optimum depends on the silos' weights."""
    l2 = 0.0 if name.startswith("linear") else 0.2
    composite = Composite(l2=l2, constraint=L2Ball(_RADIUS)) if name.endswith("ball") else Composite(l2=l2)
    problem = _problem(name, composite)
    data = silos_of(problem, SIZES, seed=5)
    if isinstance(problem, LinearRegression):
        slope = np.array([0.5, -0.3, 0.2, 0.1])
        data = [(x, x @ slope + 0.3 * y) for x, y in data]
    x, y, share = pooled(data, weights)
    curvature = float(np.linalg.eigvalsh(x.T @ (share[:, None] * x))[-1])
    if isinstance(problem, LinearRegression):
        radius = _RADIUS if name.endswith("ball") else np.inf
        return Case(problem, data, _linear_optimum(x, y, share, radius), curvature)
    classes = 3 if name == "softmax" else 2
    return Case(problem, data, _entropy_optimum(x, y, share, l2), curvature / classes + l2)


def _problem(name: str, composite: Composite) -> GeneralisedLinear:
    if name == "softmax":
        return SoftmaxRegression(4, 3, composite)
    kind = LogisticRegression if name == "logistic" else LinearRegression
    return kind(4, composite=composite)


def pooled(data: Sequence[Silo], weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All records, each with its weight p_i / n_i in the objective."""
    share = [np.full(len(y), p / len(y)) for p, (_, y) in zip(weights, data, strict=True)]
    return np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data]), np.concatenate(share)


def _linear_optimum(x: np.ndarray, y: np.ndarray, share: np.ndarray, radius: float) -> np.ndarray:
    """Normal equations; on the sphere, the multiplier at which the solution has length `radius`."""
    gram, moment = x.T @ (share[:, None] * x), x.T @ (share * y)

    def solution(multiplier: float) -> np.ndarray:
        solved: np.ndarray = np.linalg.solve(gram + multiplier * np.eye(len(gram)), moment)
        return solved

    if np.linalg.norm(solution(0)) <= radius:
        return solution(0)
    on_sphere = optimize.brentq(lambda m: np.linalg.norm(solution(m)) - radius, 0, 1e3, xtol=1e-14)
    return solution(on_sphere)


def _entropy_optimum(x: np.ndarray, y: np.ndarray, share: np.ndarray, l2: float) -> np.ndarray:
    """Of the multinomial (two classes: binomial) log loss plus l2 / 2 |w|^2, by scikit-learn."""
    fitted = SkLogisticRegression(C=1 / l2, fit_intercept=False, solver="newton-cholesky", tol=1e-13)
    solved: np.ndarray = fitted.fit(x, y, sample_weight=share).coef_.T.ravel()
    return solved
