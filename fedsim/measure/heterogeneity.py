"""How far apart the silos are: upsilon_*^2 and phi^2, from the records themselves.

Simulation only: it reads every silo's training records, past the gate, and nothing of it is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.data.federation import SiloSplit
from fedsim.measure.optimum import NoOptimumError, Pairs, is_smooth, minimiser, pair, smooth
from fedsim.problems.glm import GeneralisedLinear
from fedsim.scenario.resolve import Resolved


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
    found: dict[str, Any] = dict.fromkeys(names)
    try:
        linear = smooth(resolved.problem)
        if not is_smooth(linear):
            raise NoOptimumError("a norm as regulariser (l1, group lasso) has no gradient at the optimum")
        pairs = [pair(silo) for silo in silos]
        optimum = minimiser(linear, pairs, resolved.weights)
        gradients, variances = _moments(linear, pairs, optimum, resolved.weights)
        values = (gradients.square().sum(-1).mean(), variances.max(), variances.mean())
        found |= zip(names, map(float, values), strict=True)
        found["at"] = f"minimiser of the silos' weighted training objective, trial {trial}"
    except NoOptimumError as reason:
        found["reason"] = str(reason)
    return found | {"note": "simulation only, not private"}


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
