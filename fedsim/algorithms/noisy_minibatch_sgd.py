"""Noisy minibatch SGD: A. Lowy, thesis (USC 2023), Algorithms 14 and 19, Theorem 34, Lemma 102.

Two rounds with answers given by hand; f1 = 0 and no constraint:

>>> import torch
>>> from fedsim.problems.glm import LinearRegression
>>> algorithm = NoisyMinibatchSGD(num_rounds=2, step_size=0.5, clip_norm=1.0)
>>> run = algorithm.server(torch.zeros(1), LinearRegression(1), None, None)
>>> next(run).broadcast
{'w': tensor([0.])}
>>> run.send({"g": torch.tensor([-1.0])}).broadcast
{'w': tensor([0.5000])}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, GradientMessages, NoiseDecay, RoundBatch, Rounds, StepSize
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Public, PublicProblem, Round, ServerHalf


@dataclass(frozen=True)
class NoisyMinibatchSGD(GradientMessages):
    """Every round averages the silos' noisy gradients and takes a projected step.

    w_{r+1} = project(w_r - eta (sum_i p_i g_i + grad f1(w_r))), g_i the noisy clipped mean gradient
    of silo i's batch. Returns the mean of w_0 .. w_{R-1} weighted by gamma_r = (1 - mu eta)^-(r + 1):
    equal where mu = 0 (convex), geometrically growing where mu > 0; or w_R (`last_iterate`).
    """

    num_rounds: Rounds
    step_size: StepSize
    clip_norm: Clip
    strong_convexity: Annotated[float, Field(ge=0, description="mu: sets the mean's weights")] = 0.0
    last_iterate: Annotated[bool, Field(description="return w_R instead of the mean")] = False
    batch: RoundBatch = FULL
    noise_decay: NoiseDecay = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_decay < 1 and not self.last_iterate:
            hint = "1, or last_iterate: true: a mean of iterates has the noise of the first rounds too"
            raise InputError("noise_decay", self.noise_decay, hint)
        if self.strong_convexity > (limit := 1 / self.step_size):
            raise InputError("strong_convexity", self.strong_convexity, f"at most 1 / eta = {limit:g}")

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Projected SGD; answers with the weighted mean of the iterates so far, or with the last one."""
        mean = w
        total: float | torch.Tensor = 0.0  # (gamma_0 + .. + gamma_r) / gamma_r: gamma_r itself would overflow
        for r in range(self.num_rounds):
            total = 1 + (1 - self.strong_convexity * self.step_size) * total
            mean = mean + (w - mean) / total
            g = (yield Round(self.sent(r, w), answer=w if self.last_iterate else mean))["g"]
            w = problem.project(w - self.step_size * (g + problem.public_gradient(w)))
        return w if self.last_iterate else mean
