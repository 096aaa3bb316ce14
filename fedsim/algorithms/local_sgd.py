"""ISRL-DP local SGD: A. Lowy, thesis (USC 2023), B.1.10; with mechanism `none`, FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class LocalSGD:
    """Every round, each silo takes K noisy steps of its own and the server averages where they end.

    Silo i: w <- project(w - eta (g_i(w) + grad f1(w))), K times, each on its own draw of the batch;
    server: w_{r+1} = sum_i p_i w_i. Returns the last average.
    """

    linear: ClassVar[bool] = False
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    local_steps: Annotated[int, Field(ge=1, description="K: steps of a silo in one round")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size of the local steps")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    batch: Annotated[Batch, Field(description="which records a silo uses in one local step")] = FULL

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """Average the silos' last iterates."""
        for _ in range(self.num_rounds):
            w = (yield Round({"w": w}, answer=w))["w"]
        return w

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """K projected noisy steps from the broadcast point."""
        w = broadcast["w"]
        for _ in range(self.local_steps):
            gradient = ask(Query("gradient", (w,), self.clip_norm, self.batch))
            w = problem.project(w - self.step_size * (gradient + problem.public_gradient(w)))
        return {"w": w}
