"""Noisy proximal SGD for composite objectives: A. Lowy, thesis (USC 2023), Algorithm 20, Theorem 40."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Annotated

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, GradientMessages, NoiseDecay, RoundBatch, Rounds, Scalar
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Public, PublicProblem, Round, ServerHalf


@dataclass(frozen=True)
class ProxSGD(GradientMessages):
    """Every round averages the silos' noisy gradients and takes a proximal step.

    w_{r+1} = prox_{eta f1}(w_r - eta sum_i p_i g_i); returns the last iterate, or the mean of the last
    ones (`average_last`; post-processing, at no privacy cost). The theorem takes eta = 1 / (2 beta) and one
    pass over the data: `batch: {sampler: fresh, fraction: 1/R}`.
    """

    num_rounds: Rounds
    step_size: Annotated[Scalar, Field(gt=0, description="eta: step size, 1 / (2 beta) in the theorem")]
    clip_norm: Clip
    batch: RoundBatch = FULL
    average_last: Annotated[
        float,
        Field(ge=0, le=1, description="share of the rounds whose iterates are averaged; 0: the last one"),
    ] = 0.0
    noise_decay: NoiseDecay = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_decay < 1 and self.average_last:
            hint = "1, or average_last: 0: a mean of iterates has the noise of earlier rounds too"
            raise InputError("noise_decay", self.noise_decay, hint)

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """Proximal SGD; answers with the last iterate, or the mean of the last ones so far."""
        answer, first = w, floor((1 - self.average_last) * self.num_rounds)
        for r in range(self.num_rounds):
            mean = yield Round(self.sent(r, w), answer=answer)
            w = problem.prox(w - self.step_size * mean["g"], self.step_size)
            answer = w if r <= first else answer + (w - answer) / (r - first + 1)
        return answer
