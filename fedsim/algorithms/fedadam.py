"""FedAdam: S. J. Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2, one local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, GradientMessages, NoiseDecay, RoundBatch, Rounds, Scalar
from fedsim.protocol.contract import Public, PublicProblem, Round, ServerHalf


@dataclass(frozen=True)
class FedAdam(GradientMessages):
    """The server takes Adam's steps along the silos' noisy mean gradients.

    With g = sum_i p_i g_i + grad f1(w): m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2;
    w <- project(w - eta m / (sqrt(v) + tau)); m = 0 and v = tau^2 at first; returns w_R. The paper's silos
    may take several steps, each of which would be paid for; with one the message is a gradient, so that
    secure aggregation serves it too. Noise is in v as well: a tau below the noise of g divides by that noise.
    """

    num_rounds: Rounds
    step_size: Annotated[Scalar, Field(gt=0, description="eta: the server's step size")]
    clip_norm: Clip
    beta1: Annotated[float, Field(ge=0, lt=1, description="share of the mean gradient m that is kept")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="share of the mean square v that is kept")] = 0.99
    tau: Annotated[float, Field(gt=0, description="tau: least divisor, large for little adaptivity")] = 1e-3
    batch: RoundBatch = FULL
    noise_decay: NoiseDecay = 1.0

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """R adaptive steps; answers with the last iterate."""
        m, v = torch.zeros_like(w), torch.full_like(w, self.tau**2)
        for r in range(self.num_rounds):
            g = (yield Round(self.sent(r, w), answer=w))["g"] + problem.public_gradient(w)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g.square()
            w = problem.project(w - self.step_size * m / (v.sqrt() + self.tau))
        return w
