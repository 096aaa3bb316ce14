"""Noisy proximal SGD for composite objectives: A. Lowy, thesis (USC 2023), Algorithm 20, Theorem 40."""

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
class ProxSGD:
    """Every round averages the silos' noisy gradients and takes a proximal step.

    w_{r+1} = prox_{eta f1}(w_r - eta sum_i p_i g_i); returns the last iterate. The theorem takes
    eta = 1 / (2 beta) and one pass over the data: `batch: {sampler: fresh, fraction: 1/R}`.
    """

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size, 1 / (2 beta) in the theorem")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    batch: Annotated[Batch, Field(description="K: which records a silo uses in a round")] = FULL

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """Proximal SGD; answers with the last iterate."""
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.prox(w - self.step_size * mean["g"], self.step_size)
        return w

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The noisy mean gradient at the broadcast point."""
        return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}
