"""Noisy minibatch SGD: A. Lowy, thesis (USC 2023), Algorithms 14 and 19, Theorem 34."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class NoisyMinibatchSGD:
    """Every round averages the silos' noisy gradients and takes a projected step.

    w_{r+1} = project(w_r - eta (sum_i p_i g_i + grad f1(w_r))), g_i the noisy clipped mean gradient
    of silo i's batch; returns the mean of w_0 .. w_{R-1} (gamma_r = 1 / R).
    """

    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    batch: Annotated[Batch, Field(description="K: which records a silo uses in a round")] = FULL

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """Projected SGD; answers with the mean of the iterates so far."""
        total = torch.zeros_like(w)
        for r in range(self.num_rounds):
            total = total + w
            mean = yield Round({"w": w}, answer=total / (r + 1))
            w = problem.project(w - self.step_size * (mean["g"] + problem.public_gradient(w)))
        return total / self.num_rounds

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The noisy mean gradient at the broadcast point."""
        return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}
