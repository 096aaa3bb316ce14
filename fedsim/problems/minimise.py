"""The minimiser of a convex problem on records that need no gate: those of a simulation, and public ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple, cast

import torch
from torch import Tensor

from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem

Objective = Callable[[Tensor], Tensor]
Pairs = Sequence[tuple[Tensor, Tensor]]
_SMOOTH = (LinearRegression, LogisticRegression, SoftmaxRegression)
_NEWTON_STEPS, _PROXIMAL_STEPS = 100, 50_000
_TOLERANCE, _PROXIMAL_TOLERANCE = 1e-9, 1e-12
_CERTAIN = 25.0  # a score of 25 is a probability of 1 - 1e-11: on its way to infinity
LIKE_SKLEARN = "with |w|^2 / 2 beside the sum of losses, as in scikit-learn's default"
_PIVOT = 1e-5  # a condition number of at most about 1e10
_MOST_PARAMETERS = 2_000


def without_public(problem: Problem) -> Problem:
    """The problem of the silos' records alone: f1 is norms and the constraint."""
    if problem.composite.records is None:
        return problem
    return replace(problem, composite=replace(problem.composite, records=None))


class NoOptimumError(Exception):
    """The reason why there is no minimiser, or none that can be computed."""


def smooth(problem: Problem) -> GeneralisedLinear:
    """`problem`, if its records' losses are smooth and convex; NoOptimumError if they are not."""
    if type(problem) not in _SMOOTH:  # a subclass may have another loss, as clipped scores have
        raise NoOptimumError(f"{type(problem).__name__} is not one of the smooth generalised linear problems")
    return cast("GeneralisedLinear", problem)


def is_smooth(problem: Problem) -> bool:
    """Whether the public part has a gradient everywhere, the constraint set aside."""
    return problem.composite.l1 == 0 and problem.composite.group_lasso is None


def pooled(pairs: Pairs, weights: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """All records: features, target and p_i / n_i."""
    share = [torch.full_like(y, p / len(y)) for (_, y), p in zip(pairs, weights, strict=True)]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), torch.cat(share)


def constrained(
    problem: GeneralisedLinear,
    pairs: Pairs,
    weights: Sequence[float],
    more: Tensor | None = None,
    largest: float = inf,
) -> Tensor:
    """w* whatever the public part, (d,): by Newton's method where it applies, else by proximal gradients,
    else NoOptimumError.

    With `more`, (d,), sum_j more_j w_j^2 / 2 is added to the objective. Newton's method gives up where
    some record's score is above `largest`.
    """
    if problem.dimension > _MOST_PARAMETERS:
        most = f"at most {_MOST_PARAMETERS:,} parameters are solved for"
        raise NoOptimumError(f"{most}, and there are {problem.dimension:,}")
    if is_smooth(problem):
        try:
            return minimiser(problem, pairs, weights, more, largest)
        except NoOptimumError:
            if problem.composite.constraint is None:
                raise
    return _proximal(problem, pairs, weights, torch.zeros(problem.dimension) if more is None else more)


def minimiser(
    problem: GeneralisedLinear,
    pairs: Pairs,
    weights: Sequence[float],
    more: Tensor | None = None,
    largest: float = inf,
) -> Tensor:
    """w* of sum_i p_i F_i by Newton's method with step halving, (d,), for a smooth public part.
    NoOptimumError if there is none, it is outside the constraint set, or it is out of reach.

    A minimum-norm step serves where the Hessian is singular (softmax, repeated features).
    """
    features, target, share = pooled(pairs, weights)
    start = torch.zeros(problem.dimension, dtype=torch.float64)
    extra, quadratic = start if more is None else more, problem.composite.quadratic
    unbounded = quadratic == 0 and more is None and not isinstance(problem, LinearRegression)

    def objective(w: Tensor) -> Tensor:
        losses = problem.losses(problem.scores(features, w), target)
        return share @ losses + problem.composite.value(w) + extra @ w.square() / 2

    def slope(w: Tensor) -> Tensor:
        return gradient(problem, features, target, share, w) + problem.public_gradient(w) + extra * w

    def hessian(w: Tensor) -> Tensor:
        return hessian_of(problem, features, share, w) + torch.diag(extra + quadratic)

    def check(w: Tensor) -> None:
        if largest < inf and problem.scores(features, w).abs().max() > largest:
            raise NoOptimumError(f"scores grow above {largest:g}: the records may be separable")
        if unbounded and problem.error(problem.scores(features, w), target) == 0:  # a longer w has less loss
            raise NoOptimumError("the training records are separable: no minimiser exists; add an l2 term")

    w = _newton(objective, slope, hessian, start, check)
    if not torch.allclose(problem.project(w), w, rtol=0, atol=0):
        raise NoOptimumError("the constraint set leaves the unconstrained minimiser out")
    return w


def hessian_of(problem: GeneralisedLinear, features: Tensor, share: Tensor, w: Tensor) -> Tensor:
    """sum_x share_x (x x') outer l''(x W), (d, d): what automatic differentiation gives, d times as fast."""
    scores = problem.scores(features, w)
    if isinstance(problem, SoftmaxRegression):
        p = scores.softmax(-1)
        count = problem.num_outputs
        blocks = torch.empty(problem.num_features, count, problem.num_features, count, dtype=w.dtype)
        for a in range(count):
            for b in range(a + 1):
                second = share * p[:, a] * (float(a == b) - p[:, b])
                blocks[:, a, :, b] = blocks[:, b, :, a] = features.T @ (second.unsqueeze(1) * features)
        return blocks.reshape(problem.dimension, problem.dimension)
    if isinstance(problem, LogisticRegression):
        share = share * scores.sigmoid() * (-scores).sigmoid()
    return features.T @ (share.unsqueeze(1) * features)


def _newton(
    objective: Objective, gradient: Objective, hessian: Objective, w: Tensor, check: Callable[[Tensor], None]
) -> Tensor:
    """Minimise a smooth convex function; `check` may give every point up."""
    for _ in range(_NEWTON_STEPS):
        slope = gradient(w)
        step = -_solved(hessian(w), slope)
        if step.norm() <= _TOLERANCE * (1 + w.norm()):
            return w + step
        w = _descended(objective, w, step, float(slope @ step))
        check(w)
    raise NoOptimumError(
        f"Newton's method did not converge in {_NEWTON_STEPS} steps; the records may be separable"
    )


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """The solution of least norm; by Cholesky's factors where they show that there is only one."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal()
    if not failed and pivots.min() > _PIVOT * pivots.max():
        return torch.cholesky_solve(right.unsqueeze(1), factor).squeeze(1)
    solution: Tensor = torch.linalg.lstsq(matrix, right, driver="gelsd").solution
    return solution


def _descended(objective: Objective, w: Tensor, step: Tensor, slope: float) -> Tensor:
    """w + t step for the largest t = 1, 1/2, 1/4, ... that lowers the objective enough."""
    start = objective(w)
    for power in range(40):
        point: Tensor = w + step / 2**power
        if objective(point) <= start + 1e-4 * slope / 2**power + 1e-15 * abs(start):
            return point
    raise NoOptimumError("Newton's method stopped short of a minimiser; the records may be separable")


def _proximal(problem: GeneralisedLinear, pairs: Pairs, weights: Sequence[float], more: Tensor) -> Tensor:
    """Accelerated proximal gradient steps 1 / L (Beck and Teboulle, 2009), with restarts where they turn back
    (O'Donoghue and Candes, 2015), until the gradient mapping is as good as zero.

    L is that of the smooth part: the largest eigenvalue of sum_x share x x' times the largest curvature of
    the loss in the scores (1; two classes 1/4; softmax 1/2).
    """
    features, target, share = pooled(pairs, weights)
    gram = features.T @ (share.unsqueeze(1) * features)
    curvature = cast(float, problem.curvature)  # a smooth loss has one
    smoothness = float(torch.linalg.eigvalsh(gram)[-1]) * curvature + float(more.max())
    if smoothness == 0:
        return problem.prox(torch.zeros(problem.dimension, dtype=torch.float64), 1.0)
    previous = point = problem.project(torch.zeros(problem.dimension, dtype=torch.float64))
    momentum = 1.0
    for _ in range(_PROXIMAL_STEPS):
        slope = gradient(problem, features, target, share, point) + more * point
        w = problem.prox(point - slope / smoothness, 1 / smoothness)
        if (w - point).norm() <= _PROXIMAL_TOLERANCE * (1 + w.norm()):
            return w
        turned = (point - w) @ (w - previous) > 0
        following = 1.0 if turned else (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        point = w if turned else w + (momentum - 1) / following * (w - previous)
        previous, momentum = w, following
    raise NoOptimumError(f"proximal gradients did not converge in {_PROXIMAL_STEPS:,} steps")


def gradient(
    problem: GeneralisedLinear, features: Tensor, target: Tensor, share: Tensor, w: Tensor
) -> Tensor:
    """sum_x share_x grad f(w, x), (d,)."""
    inverse = torch.nan_to_num(1 / features.norm(dim=-1), posinf=0.0)
    coefficient = problem.coefficient(problem.scores(features, w), target, inverse)
    weighted = share.unsqueeze(1) * coefficient.reshape(len(target), -1)
    return (weighted.T @ features).T.flatten()  # features.T @ weighted takes ten times as long


class Fit(NamedTuple):
    """Parameters, (d,), or None; and the method, or the reason why there are none."""

    w: Tensor | None
    method: str


def slight(problem: GeneralisedLinear, n: int, intercept: bool) -> Tensor:
    """1 / n for every parameter but the constant feature's, (d,)."""
    weights = torch.full((problem.num_features, problem.num_outputs), 1 / n, dtype=torch.float64)
    if intercept:
        weights[-1] = 0
    return weights.flatten()


def convex(problem: Problem, pairs: Pairs, shares: Sequence[float], intercept: bool) -> Fit:
    """The optimum of the records' mean losses, weighted by `shares`, plus the public part; where they do not
    determine one, what scikit-learn's default makes of them. NoOptimumError as `smooth` and `constrained`.
    """
    linear, target = smooth(problem), torch.cat([y for _, y in pairs])
    method, classes = "converged", max(2, linear.num_outputs)
    if len(target) > linear.num_features or linear.composite.quadratic > 0:
        largest = inf if isinstance(linear, LinearRegression) else _CERTAIN
        with suppress(NoOptimumError):
            return Fit(constrained(linear, pairs, shares, largest=largest), method)
    whole = isinstance(linear, LinearRegression) or len(torch.unique(target)) == classes
    small = slight(linear, len(target), intercept and whole)
    return Fit(constrained(linear, pairs, shares, small), f"{method}, {LIKE_SKLEARN}")
