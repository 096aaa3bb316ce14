"""ISRL-DP local SGD: A. Lowy, thesis (USC 2023), B.1.10; with mechanism `none`, FedAvg.

One silo takes two local steps; every gradient is -1:

>>> import torch
>>> from fedsim.problems.glm import LinearRegression
>>> algorithm = LocalSGD(num_rounds=1, local_steps=2, step_size=0.5, clip_norm=1.0)
>>> start = {"w": torch.zeros(1, 1)}
>>> algorithm.silo(LinearRegression(1), start, ask=lambda query: -torch.ones(1, 1), memory={})
{'way': tensor([[1.]])}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Batch, Clip, Rounds, Scalar
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class LocalSGD:
    """Every round, each silo takes K noisy local steps and the server averages the resulting models.

    Silo i: w <- project(w - eta (g_i(w) + grad f1(w))), K times, each on a new draw of the batch, to w_i;
    it sends w_i - w_r. Server: w_{r+1} = project(w_r + sum_i p_i (w_i - w_r)), with all silos their
    mean sum_i p_i w_i: coefficients of some silos need not sum to 1, so models are not sent. Returns w_R.
    """

    linear: ClassVar[bool] = False
    num_rounds: Rounds
    local_steps: Annotated[int, Field(ge=1, le=10_000, description="K: steps of a silo in one round")]
    step_size: Annotated[Scalar, Field(gt=0, description="eta: step size of the local steps")]
    clip_norm: Clip
    batch: Annotated[Batch, Field(description="which records a silo uses in one local step")] = FULL

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Add the silos' mean change to the model, R times."""
        for _ in range(self.num_rounds):
            w = problem.project(w + (yield Round({"w": w}, answer=w))["way"])
        return w

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"way": the change of the model over K noisy local steps, (silos, d)}."""
        start = w = broadcast["w"]
        for _ in range(self.local_steps):
            w = problem.descend(w, ask(Query("gradient", (w,), self.clip_norm, self.batch)), self.step_size)
        return {"way": w - start}
