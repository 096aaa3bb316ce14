"""Noisy minibatch SGD: A. Lowy, thesis (USC 2023), Algorithms 14 and 19, Theorem 34, Lemma 102."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NoisyMinibatchSGD:
    """Every round averages the silos' noisy gradients and takes a projected step.

    w_{r+1} = project(w_r - eta (sum_i p_i g_i + grad f1(w_r))), g_i the noisy clipped mean gradient
    of silo i's batch. Returns the mean of w_0 .. w_{R-1} weighted by gamma_r = (1 - mu eta)^-(r + 1):
    equal where mu = 0 (convex), geometrically growing where mu > 0; or, if asked for, w_R.
    """

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    strong_convexity: Annotated[float, Field(ge=0, description="mu: sets the mean's weights")] = 0.0
    last_iterate: Annotated[bool, Field(description="return w_R instead of the mean")] = False
    batch: Annotated[Batch, Field(description="K: which records a silo uses in a round")] = FULL

    def __post_init__(self) -> None:
        if self.strong_convexity > (limit := 1 / self.step_size):
            raise InputError("strong_convexity", self.strong_convexity, f"at most 1 / eta = {limit:g}")

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """Projected SGD; answers with the weighted mean of the iterates so far, or with the last one."""
        mean, total = w, 0.0  # total = (gamma_0 + .. + gamma_r) / gamma_r: gamma_r itself would overflow
        for _ in range(self.num_rounds):
            total = 1 + (1 - self.strong_convexity * self.step_size) * total
            mean = mean + (w - mean) / total
            g = (yield Round({"w": w}, answer=w if self.last_iterate else mean))["g"]
            w = problem.project(w - self.step_size * (g + problem.public_gradient(w)))
        return w if self.last_iterate else mean

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The noisy mean gradient at the broadcast point."""
        return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}
