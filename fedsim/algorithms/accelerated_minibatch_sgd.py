"""Accelerated noisy minibatch SGD: A. Lowy, thesis (USC 2023), Algorithm 1, Theorems 36, 37, 124 and 129.

The first round asks at w_0, since c = 0 where a_1 = 1; the second at a mean of the two sequences:

>>> import torch
>>> from fedsim.problems.glm import LinearRegression
>>> algorithm = AcceleratedMinibatchSGD(num_rounds=2, step_size=0.5, clip_norm=1.0)
>>> run = algorithm.server(torch.zeros(1), LinearRegression(1), None, None)
>>> next(run).broadcast
{'w': tensor([0.])}
>>> run.send({"g": torch.tensor([-1.0])}).broadcast
{'w': tensor([0.2500])}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, GradientMessages, NoiseDecay, RoundBatch, Rounds, Scalar
from fedsim.protocol.contract import Public, PublicProblem, Round, ServerHalf


@dataclass(frozen=True)
class AcceleratedMinibatchSGD(GradientMessages):
    """Noisy gradients at an extrapolated point drive two sequences, whose average is returned (AC-SA).

    With a_r = 2 / (r + 1) and e_r = 4 v / (r (r + 1)), v the inverse step (2 beta without noise):
    w_md = c w_ag + (1 - c) w, c = (1 - a)(mu + e) / (e + (1 - a^2) mu); g the noisy mean gradient there;
    w <- project((a mu w_md + ((1 - a) mu + e) w - a g) / (mu + e)); w_ag <- a w + (1 - a) w_ag.
    One pass: `batch: {sampler: fresh, fraction: 1/R}`; empirical risk: any other batch.
    """

    num_rounds: Rounds
    step_size: Annotated[Scalar, Field(gt=0, description="1 / v: 1 / (2 beta) without noise")]
    clip_norm: Clip
    strong_convexity: Annotated[float, Field(ge=0, description="mu: of the objective")] = 0.0
    batch: RoundBatch = FULL
    noise_decay: NoiseDecay = 1.0

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """R accelerated steps; answers with the aggregate sequence w_ag."""
        average, mu = w, self.strong_convexity
        for r in range(1, self.num_rounds + 1):
            a, e = 2 / (r + 1), 4 / (self.step_size * r * (r + 1))
            c = (1 - a) * (mu + e) / (e + (1 - a**2) * mu)
            middle = c * average + (1 - c) * w
            mean = yield Round(self.sent(r - 1, middle), answer=average)
            gradient = mean["g"] + problem.public_gradient(middle)
            w = (a * mu * middle + ((1 - a) * mu + e) * w - a * gradient) / (mu + e)
            w = problem.project(w)
            average = a * w + (1 - a) * average
        return average
