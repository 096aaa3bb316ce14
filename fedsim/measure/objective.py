"""Excess risk and gradient mapping of the training objective, which the theorems bound.

    F(w) = sum_i p_i (1 / n_i) sum_x f(w, x) + f1(w),
    G_eta(w) = (w - prox_{eta f1}(w - eta grad F0(w))) / eta,    F0 = F - f1 (thesis, chapter 3),

over the silos' training records. Simulation only: it reads them past the gate, and nothing of it is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsim.common.serialise import finite
from fedsim.data.federation import SiloSplit
from fedsim.problems.glm import GeneralisedLinear, KinkedLoss
from fedsim.problems.minimise import (
    NoOptimumError,
    Pairs,
    constrained,
    gradient,
    is_smooth,
    minimiser,
    pooled,
    smooth,
    without_public,
)
from fedsim.protocol.contract import Algorithm, traits
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
        self._problem = without_public(resolved.problem)
        self.eta = eta_of(resolved.algorithm)
        pairs, weights = with_public(resolved, silos)
        self._features, self._target, self._share = pooled(pairs, weights)
        self.least: float | None = None
        self.reason: str | None = None
        try:
            linear = smooth(self._problem)
            self.least = self._value(linear, constrained(linear, pairs, weights))
        except NoOptimumError as reason:
            self.reason = str(reason)

    def __call__(self, w: Tensor) -> Risk:
        """Measure the parameters w, (d,); values that are not finite count as not measured."""
        problem, w = self._problem, w.double()
        excess = mapping_sq = None
        if self.least is not None:
            excess = finite(self._value(smooth(problem), w) - self.least)
        if not isinstance(problem, KinkedLoss) or problem.smoothing is not None:
            moved = problem.prox(w - self.eta * self._slope(w), self.eta)
            mapping_sq = finite(float(((w - moved) / self.eta).square().sum()))
        return Risk(excess, mapping_sq)

    def _value(self, problem: GeneralisedLinear, w: Tensor) -> float:
        losses = problem.losses(problem.scores(self._features, w), self._target)
        return float(self._share @ losses + problem.composite.value(w))

    def _slope(self, w: Tensor) -> Tensor:
        """grad F0(w), (d,)."""
        problem, records = self._problem, (self._features, self._target, self._share)
        if isinstance(problem, GeneralisedLinear):
            return gradient(problem, *records, w)
        total, point = torch.zeros_like(w), w.detach().requires_grad_()
        for x, y, share in zip(*(torch.split(each, _ROWS) for each in records), strict=True):
            loss = share @ problem.losses(problem.slope_scores(x, point), y)
            total += torch.autograd.grad(loss, point)[0]
        return total


def eta_of(algorithm: Algorithm) -> float:
    """The algorithm's step size; 1 / (2 beta) where it states a smoothness instead; else 1."""
    step, smoothness = traits(algorithm).step_size, traits(algorithm).smoothness
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
        linear = smooth(without_public(resolved.problem))
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


def pair(silo: SiloSplit) -> tuple[Tensor, Tensor]:
    """Training features (n, d) and target (n,) in float64."""
    return torch.as_tensor(silo.train.features).double(), torch.as_tensor(silo.train.target).double()


def with_public(resolved: Resolved, silos: Sequence[SiloSplit]) -> tuple[Pairs, list[float]]:
    """The silos' records and weights, and public records as one silo more, whose weight is kappa."""
    pairs, weights = [pair(silo) for silo in silos], list(resolved.weights)
    records = resolved.problem.composite.records
    if records is not None and records.weight:
        pairs, weights = [*pairs, records.pair], [*weights, records.weight]
    return pairs, weights
