"""How far apart the silos are: upsilon_*^2 and phi^2, from the records themselves.

Simulation only: it reads every silo's training records, past the gate, and nothing of it is private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.data.federation import SiloSplit
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.runtime.trial import read
from fedsim.scenario.resolve import Resolved

Objective = Callable[[Tensor], Tensor]
Pairs = Sequence[tuple[Tensor, Tensor]]
_SMOOTH = (LinearRegression, LogisticRegression, SoftmaxRegression)
_STEPS = 100
_TOLERANCE = 1e-9


class _NoOptimumError(Exception):
    """Why there is no point to measure at."""


def measure(resolved: Resolved, trial: int = 0) -> dict[str, Any]:
    """The `heterogeneity` part of the summary, from the training records of one trial.

    With F_i silo i's mean loss plus the public l2 term and w* the minimiser of sum_i p_i F_i:

    * upsilon_star_sq = (1/N) sum_i |grad F_i(w*)|^2;
    * phi_sq_at_optimum = max_i mean_x |grad f(w*, x) - grad F_i(w*)|^2, `phi_sq_mean_at_optimum` the mean
      over silos; the phi^2 of the theorems (thesis, chapter 3) is a supremum over all w, so at least this.

    Both are None, with a reason, where there is no such w* or it cannot be found.
    """
    problem = resolved.problem
    found: dict[str, Any] = {
        "upsilon_star_sq": None,
        "phi_sq_at_optimum": None,
        "phi_sq_mean_at_optimum": None,
    }
    try:
        smooth = _smooth(problem)
        pairs = [_pair(silo) for silo in read(resolved, trial).silos]
        optimum = minimiser(smooth, pairs, resolved.weights)
        gradients, variances = _moments(smooth, pairs, optimum)
        found["upsilon_star_sq"] = float(gradients.square().sum(-1).mean())
        found["phi_sq_at_optimum"] = float(variances.max())
        found["phi_sq_mean_at_optimum"] = float(variances.mean())
        found["at"] = f"minimiser of the silos' weighted training objective, trial {trial}"
    except _NoOptimumError as reason:
        found["reason"] = str(reason)
    return found | {"note": "simulation only, not private"}


def _smooth(problem: Problem) -> GeneralisedLinear:
    if not isinstance(problem, _SMOOTH):
        raise _NoOptimumError(
            f"{type(problem).__name__} is not one of the smooth generalised linear problems"
        )
    if problem.composite.l1 > 0 or problem.composite.group_lasso.weight > 0:
        raise _NoOptimumError("a norm as regulariser (l1, group lasso) has no gradient at the optimum")
    return problem


def _pair(silo: SiloSplit) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(silo.train_features).double(), torch.as_tensor(silo.train_target).double()


def minimiser(problem: GeneralisedLinear, pairs: Pairs, weights: Sequence[float]) -> Tensor:
    """w* of sum_i p_i F_i by Newton's method with step halving, (d,).

    A minimum-norm step serves where the Hessian is singular (softmax, repeated features).
    """
    features = torch.cat([x for x, _ in pairs])
    target = torch.cat([y for _, y in pairs])
    shares = [torch.full_like(y, p / len(y)) for (_, y), p in zip(pairs, weights, strict=True)]
    share = torch.cat(shares)

    def objective(w: Tensor) -> Tensor:
        losses = problem.losses(problem.scores(features, w), target)
        return share @ losses + problem.composite.value(w)

    w = _newton(objective, torch.zeros(problem.dimension, dtype=torch.float64))
    if problem.composite.l2 + problem.composite.ridge.weight == 0 and _separates(
        problem, features, target, w
    ):
        raise _NoOptimumError("the training records are separable: no minimiser exists; add an l2 term")
    if not torch.allclose(problem.project(w), w, rtol=0, atol=0):
        raise _NoOptimumError("the constraint set leaves the unconstrained minimiser out")
    return w


def _newton(objective: Objective, w: Tensor) -> Tensor:
    """Minimise a smooth convex function."""
    gradient: Objective = torch.func.grad(objective)
    # Not all columns at once: a vectorised Hessian needs d times the memory of a gradient.
    hessian: Objective = torch.func.jacrev(gradient, chunk_size=32)
    for _ in range(_STEPS):
        slope = gradient(w)
        step: Tensor = torch.linalg.lstsq(hessian(w), -slope, driver="gelsd").solution
        if step.norm() <= _TOLERANCE * (1 + w.norm()):
            return w + step
        w = _descended(objective, w, step, float(slope @ step))
    raise _NoOptimumError(f"Newton's method did not converge in {_STEPS} steps; the records may be separable")


def _descended(objective: Objective, w: Tensor, step: Tensor, slope: float) -> Tensor:
    """w + t step for the largest t = 1, 1/2, 1/4, ... that lowers the objective enough."""
    start = objective(w)
    for power in range(40):
        point: Tensor = w + step / 2**power
        if objective(point) <= start + 1e-4 * slope / 2**power + 1e-15 * abs(start):
            return point
    raise _NoOptimumError("Newton's method stopped short of a minimiser; the records may be separable")


def _separates(problem: GeneralisedLinear, features: Tensor, target: Tensor, w: Tensor) -> bool:
    """Whether every record is on its own class's side, so that a longer w would lower the loss for ever."""
    if isinstance(problem, LinearRegression):
        return False
    return bool(problem.error(problem.scores(features, w), target) == 0)


def _moments(problem: GeneralisedLinear, pairs: Pairs, w: Tensor) -> tuple[Tensor, Tensor]:
    """grad F_i(w), (silos, d), and mean_x |grad f(w, x) - grad F_i(w)|^2, (silos,).

    A record's gradient is x outer l', so its squared norm is |x|^2 |l'|^2; the public term cancels.
    """
    gradients, variances = [], []
    for x, y in pairs:
        inverse = torch.nan_to_num(1 / x.norm(dim=-1), posinf=0.0)
        coefficient = problem.coefficient(problem.scores(x, w), y, inverse).reshape(len(y), -1)
        mean = (x.T @ coefficient).flatten() / len(y)
        second = (x.square().sum(-1) * coefficient.square().sum(-1)).mean()
        gradients.append(mean + problem.public_gradient(w))
        variances.append(second - mean.square().sum())
    return torch.stack(gradients), torch.stack(variances)
