"""Accelerated noisy minibatch SGD: A. Lowy, thesis (USC 2023), Algorithm 1, Theorems 36, 37, 124 and 129."""

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
class AcceleratedMinibatchSGD:
    """Noisy gradients at an extrapolated point drive two sequences, whose average is returned (AC-SA).

    With a_r = 2 / (r + 1) and e_r = 4 v / (r (r + 1)), v the inverse step (2 beta without noise):
    w_md = c w_ag + (1 - c) w, c = (1 - a)(mu + e) / (e + (1 - a^2) mu); g the noisy mean gradient there;
    w <- project((a mu w_md + ((1 - a) mu + e) w - a g) / (mu + e)); w_ag <- a w + (1 - a) w_ag.
    One pass: `batch: {sampler: fresh, fraction: 1/R}`; empirical risk: any other batch.
    """

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    step_size: Annotated[float, Field(gt=0, description="1 / v: 1 / (2 beta) without noise")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    strong_convexity: Annotated[float, Field(ge=0, description="mu: of the objective")] = 0.0
    batch: Annotated[Batch, Field(description="K: which records a silo uses in a round")] = FULL

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """R accelerated steps; answers with the aggregate sequence w_ag."""
        average, mu = w, self.strong_convexity
        for r in range(1, self.num_rounds + 1):
            a, e = 2 / (r + 1), 4 / (self.step_size * r * (r + 1))
            c = (1 - a) * (mu + e) / (e + (1 - a**2) * mu)
            middle = c * average + (1 - c) * w
            mean = yield Round({"w": middle}, answer=average)
            gradient = mean["g"] + problem.public_gradient(middle)
            w = (a * mu * middle + ((1 - a) * mu + e) * w - a * gradient) / (mu + e)
            w = problem.project(w)
            average = a * w + (1 - a) * average
        return average

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The noisy mean gradient at the extrapolated point."""
        return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}
