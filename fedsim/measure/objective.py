"""Excess risk and gradient mapping of the training objective, which the theorems bound.

    F(w) = sum_i p_i (1 / n_i) sum_x f(w, x) + f1(w),
    G_eta(w) = (w - prox_{eta f1}(w - eta grad F0(w))) / eta,    F0 = F - f1 (thesis, chapter 3),

over the silos' training records. Simulation only: it reads them past the gate, and nothing of it is private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedsim.common.serialise import finite
from fedsim.data.federation import SiloSplit
from fedsim.problems.composite import WholeSpace
from fedsim.problems.glm import (
    GeneralisedLinear,
    KinkedLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.contract import Algorithm
from fedsim.scenario.resolve import Resolved

NOTE = "simulation only, not private"
_ROWS = 4096  # a network's records that are differentiated at once


class Risk(NamedTuple):
    """F(w) - F(w*) and |G_eta(w)|^2; None where there is no w*, or no gradient."""

    excess: float | None
    gradient_mapping_sq: float | None


class TrainingObjective:
    """Measures models of one trial, in float64; `least` is F(w*), None for a `reason`."""

    def __init__(self, resolved: Resolved, silos: Sequence[SiloSplit]) -> None:
        self._problem = resolved.problem
        self.eta = eta_of(resolved.algorithm)
        pairs = [pair(silo) for silo in silos]
        self._features, self._target, self._share = pooled(pairs, resolved.weights)
        self.least: float | None = None
        self.reason: str | None = None
        try:
            linear = smooth(resolved.problem)
            self.least = self._value(linear, constrained(linear, pairs, resolved.weights))
        except NoOptimumError as reason:
            self.reason = str(reason)

    def __call__(self, w: Tensor) -> Risk:
        """Measure the parameters w, (d,); values that are not finite count as not measured."""
        w = w.double()
        excess = None
        if self.least is not None:
            excess = finite(self._value(smooth(self._problem), w) - self.least)
        return Risk(excess, finite(self._mapping_sq(w)))

    def _value(self, problem: GeneralisedLinear, w: Tensor) -> float:
        losses = problem.losses(problem.scores(self._features, w), self._target)
        return float(self._share @ losses + problem.composite.value(w))

    def _mapping_sq(self, w: Tensor) -> float | None:
        problem = self._problem
        if isinstance(problem, KinkedLoss) and problem.smoothing is None:
            return None
        slope = self._slope(w)
        return float(((w - problem.prox(w - self.eta * slope, self.eta)) / self.eta).square().sum())

    def _slope(self, w: Tensor) -> Tensor:
        """grad F0(w), (d,)."""
        problem, records = self._problem, (self._features, self._target, self._share)
        if not isinstance(problem, NeuralNetwork):
            return gradient(problem, *records, w)
        total, point = torch.zeros_like(w), w.detach().requires_grad_()
        for x, y, share in zip(*(torch.split(each, _ROWS) for each in records), strict=True):
            loss = share @ problem.losses(problem.slope_scores(x, point), y)
            total += torch.autograd.grad(loss, point)[0]
        return total


def eta_of(algorithm: Algorithm) -> float:
    """The algorithm's step size; 1 / (2 beta) where it states a smoothness instead; else 1."""
    step, smoothness = (getattr(algorithm, name, None) for name in ("step_size", "smoothness"))
    if isinstance(step, int | float):
        return float(step)
    return 1 / (2 * float(smoothness)) if isinstance(smoothness, int | float) else 1.0


def measure(resolved: Resolved, silos: Sequence[SiloSplit], trial: int = 0) -> dict[str, Any]:
    """The `heterogeneity` part of the summary, from all silos' training records of one trial.

    With F_i silo i's mean loss times N p_i, plus the public term, as the thesis has weights, so that
    F = (1/N) sum_i F_i, and with w* the minimiser of F:

    * upsilon_star_sq = (1/N) sum_i |grad F_i(w*)|^2;
    * phi_sq_at_optimum = max_i mean_x |N p_i grad f(w*, x) - grad F_i(w*)|^2, `phi_sq_mean_at_optimum` the
      mean over silos; the phi^2 of the theorems (thesis, chapter 3) is a supremum over w, so at least this.

    Both are None, with a reason, where there is no such w* or it cannot be found.
    """
    names = ("upsilon_star_sq", "phi_sq_at_optimum", "phi_sq_mean_at_optimum")
    summary: dict[str, Any] = dict.fromkeys(names)
    try:
        linear = smooth(resolved.problem)
        if not is_smooth(linear):
            raise NoOptimumError("a norm as regulariser (l1, group lasso) has no gradient at the optimum")
        pairs = [pair(silo) for silo in silos]
        optimum = minimiser(linear, pairs, resolved.weights)
        gradients, variances = _moments(linear, pairs, optimum, resolved.weights)
        values = (gradients.square().sum(-1).mean(), variances.max(), variances.mean())
        summary |= zip(names, map(float, values), strict=True)
        summary["at"] = f"minimiser of the silos' weighted training objective, trial {trial}"
    except NoOptimumError as reason:
        summary["reason"] = str(reason)
    return summary | {"note": NOTE}


def _moments(
    problem: GeneralisedLinear, pairs: Pairs, w: Tensor, weights: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """grad F_i(w), (silos, d), and mean_x |N p_i grad f(w, x) - grad F_i(w)|^2, (silos,).

    A record's gradient is x outer l', so its squared norm is |x|^2 |l'|^2; the public term cancels.
    """
    gradients, variances = [], []
    for (x, y), p in zip(pairs, weights, strict=True):
        scale = len(pairs) * p
        inverse = torch.nan_to_num(1 / x.norm(dim=-1), posinf=0.0)
        coefficient = problem.coefficient(problem.scores(x, w), y, inverse).reshape(len(y), -1)
        mean = (x.T @ coefficient).flatten() / len(y)
        second = (x.square().sum(-1) * coefficient.square().sum(-1)).mean()
        gradients.append(scale * mean + problem.public_gradient(w))
        variances.append(scale**2 * (second - mean.square().sum()))
    return torch.stack(gradients), torch.stack(variances)


Objective = Callable[[Tensor], Tensor]
Pairs = Sequence[tuple[Tensor, Tensor]]
_SMOOTH = (LinearRegression, LogisticRegression, SoftmaxRegression)
_NEWTON_STEPS, _PROXIMAL_STEPS = 100, 50_000
_TOLERANCE, _PROXIMAL_TOLERANCE = 1e-9, 1e-12
_PIVOT = 1e-5  # a condition number of at most about 1e10
_MOST_PARAMETERS = 2_000


class NoOptimumError(Exception):
    """The reason why there is no minimiser, or none that can be computed."""


def pair(silo: SiloSplit) -> tuple[Tensor, Tensor]:
    """Training features (n, d) and target (n,) in float64."""
    return torch.as_tensor(silo.train_features).double(), torch.as_tensor(silo.train_target).double()


def smooth(problem: Problem) -> GeneralisedLinear:
    """`problem`, if its records' losses are smooth and convex; NoOptimumError if they are not."""
    if type(problem) not in _SMOOTH:  # a subclass may have another loss, as clipped scores have
        raise NoOptimumError(f"{type(problem).__name__} is not one of the smooth generalised linear problems")
    return cast("GeneralisedLinear", problem)


def is_smooth(problem: Problem) -> bool:
    """Whether the public part has a gradient everywhere, the constraint set aside."""
    return problem.composite.l1 == 0 and problem.composite.group_lasso.weight == 0


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
            if isinstance(problem.composite.constraint, WholeSpace):
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
    extra, quadratic = start if more is None else more, problem.composite.l2 + problem.composite.ridge.weight
    unbounded = quadratic == 0 and more is None and not isinstance(problem, LinearRegression)

    def objective(w: Tensor) -> Tensor:
        losses = problem.losses(problem.scores(features, w), target)
        return share @ losses + problem.composite.value(w) + extra @ w.square() / 2

    def slope(w: Tensor) -> Tensor:
        return gradient(problem, features, target, share, w) + problem.public_gradient(w) + extra * w

    def hessian(w: Tensor) -> Tensor:
        return _hessian(problem, features, share, w) + torch.diag(extra + quadratic)

    def check(w: Tensor) -> None:
        if largest < inf and problem.scores(features, w).abs().max() > largest:
            raise NoOptimumError(f"scores grow above {largest:g}: the records may be separable")
        if unbounded and problem.error(problem.scores(features, w), target) == 0:  # a longer w has less loss
            raise NoOptimumError("the training records are separable: no minimiser exists; add an l2 term")

    w = _newton(objective, slope, hessian, start, check)
    if not torch.allclose(problem.project(w), w, rtol=0, atol=0):
        raise NoOptimumError("the constraint set leaves the unconstrained minimiser out")
    return w


def _hessian(problem: GeneralisedLinear, features: Tensor, share: Tensor, w: Tensor) -> Tensor:
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
    steps = f"{_NEWTON_STEPS} steps; the records may be separable"
    raise NoOptimumError(f"Newton's method did not converge in {steps}")


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
