"""Fair noisy minibatch SGD: DP-FERMI (A. Lowy 2023, Algorithm 10) with whole records protected in each silo.

The max player W is the server's: it is a function of noisy joints, so no second private block is needed.

Two rounds with answers given by hand; two groups, equal shares of them, and parity at once:

>>> import torch
>>> from fedsim.problems.composite import Composite
>>> from fedsim.problems.fairness import Fairness
>>> from fedsim.problems.glm import LogisticRegression
>>> problem = LogisticRegression(1, 1, Composite(fairness=Fairness("demographic_parity", 1.0, (0.5, 0.5), 2)))
>>> algorithm = FairMinibatchSGD(num_rounds=2, step_size=0.5, clip_norm=1.0)
>>> run = algorithm.server(torch.zeros(1), problem, None, None)
>>> next(run).broadcast["table"]
tensor([0., 0., 0., 0.])
>>> _ = run.send({"g": torch.tensor([-1.0]), "joint": torch.full((4,), 0.25)})
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, Ratio, RoundBatch, Rounds, StepSize
from fedsim.common.errors import InputError
from fedsim.problems.composite import HasComposite
from fedsim.problems.fairness import Fairness
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class FairMinibatchSGD:
    """Minimise loss + lambda D_pi (`fedsim.problems.fairness`); weight 0 is minibatch SGD.

    A round sends w and the table of costs. Silos answer the joint of predictions and groups, and the gradient
    of loss and costs, on one batch. The server moves W by the joint and w by the gradient:
    w_{r+1} = project(w_r - eta (sum_i p_i g_i + grad f1(w_r))). The curvature grows with lambda, so that
    large weights oscillate: returned is the mean of the last half, or w_R (`last_iterate`).
    """

    num_rounds: Rounds
    step_size: StepSize
    clip_norm: Clip
    table_step: Annotated[
        float | None,
        Field(gt=0, description="step of W, which averages the joint's noise; left out: the best W"),
    ] = 0.5
    joint_noise_ratio: Ratio = 2.4
    last_iterate: Annotated[bool, Field(description="return w_R instead of the mean of the last half")] = (
        False
    )
    batch: RoundBatch = FULL
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Descends in w and ascends in W."""
        fairness = _fairness(problem)
        dual, mean, kept = fairness.start(w), w, 0
        for r in range(self.num_rounds):
            sums = yield Round({"w": w, "table": fairness.table(dual)}, answer=mean)
            dual = fairness.ascended(dual, sums["joint"], self.table_step)
            w = problem.project(w - self.step_size * (sums["g"] + problem.public_gradient(w)))
            kept = 1 if self.last_iterate or 2 * r < self.num_rounds else kept + 1
            mean = mean + (w - mean) / kept
        return mean

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"joint": (silos, cells), "g": (silos, d)}, both noisy and on one batch."""
        fairness, w = _fairness(problem), broadcast["w"]
        points, options = (w, broadcast["table"]), fairness.cells.options
        bounds = (*options, fairness.reach)
        joint, g = ask(
            Query("joint", (w,), 1.0, self.batch, self.joint_noise_ratio, (*options, 0.0)),
            Query("costed_gradient", points, self.clip_norm, self.batch, options=bounds),
        )
        return {"joint": joint, "g": g}


def _fairness(problem: PublicProblem) -> Fairness:
    found = problem.composite.fairness if isinstance(problem, HasComposite) else None
    if found is None:
        hint = "fair_minibatch_sgd needs {notion, weight}, such as {notion: demographic_parity, weight: 1}"
        raise InputError("scenario.problem.fairness", None, hint)
    return found
