"""ISRL-DP local SGD: A. Lowy, thesis (USC 2023), B.1.10; with mechanism `none`, FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LocalSGD:
    """Every round, each silo takes K noisy steps of its own and the server averages where they end.

    Silo i: w <- project(w - eta (g_i(w) + grad f1(w))), K times, each on its own draw of the batch, to w_i;
    it sends the way it went. Server: w_{r+1} = project(w_r + sum_i p_i (w_i - w_r)), with all silos their
    mean sum_i p_i w_i: coefficients of some silos need not sum to 1, so models are not sent. Returns w_R.
    """

    linear: ClassVar[bool] = False
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    local_steps: Annotated[int, Field(ge=1, le=10_000, description="K: steps of a silo in one round")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size of the local steps")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    batch: Annotated[Batch, Field(description="which records a silo uses in one local step")] = FULL

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """Go the silos' mean way, R times."""
        for _ in range(self.num_rounds):
            w = problem.project(w + (yield Round({"w": w}, answer=w))["way"])
        return w

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """Where K projected noisy steps lead, from the broadcast point."""
        start = w = broadcast["w"]
        for _ in range(self.local_steps):
            gradient = ask(Query("gradient", (w,), self.clip_norm, self.batch))
            w = problem.descend(w, gradient, self.step_size)
        return {"way": w - start}
