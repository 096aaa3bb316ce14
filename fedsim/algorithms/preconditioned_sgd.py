"""Noisy SGD preconditioned by a private second moment: no step size, and few rounds.

One round releases the second moment of the features (Analyze Gauss: Dwork, Talwar, Thakurta and Zhang 2014,
Algorithm 1), the others noisy gradients. Each is multiplied by the inverse of the moment times the largest
second derivative of the loss: Newton's step of least squares, and for other losses a step on an upper bound
of the Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Clip, Rounds, moment_of, spectral_norm
from fedsim.common.errors import InputError
from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class PreconditionedSGD:
    """A round for the second moment H of the features, then `num_rounds` of projected, preconditioned steps.

    w <- project(w - P (g + grad f1(w))). P is the inverse of h H, h the loss's largest second derivative;
    eigenvalues below the noise's own spectral norm are raised to it, so that no direction is trusted beyond
    the noise. Returns the mean of the iterates with weights 1, 2, .., R: the clip leaves the first ones
    behind, and the others differ by noise.
    """

    num_rounds: Rounds = 5
    clip_norm: Clip = 0.5
    moment_clip: Annotated[float, Field(gt=0, description="bound on a record's squared norm in H")] = 2.25
    moment_share: Annotated[float, Field(gt=0, lt=1, description="share of mu^2 for H")] = 0.2
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    @property
    def _moment(self) -> Query:
        """The query for H; 1 / noise_ratio^2 is its share of the sum of all."""
        ratio = math.sqrt((1 - self.moment_share) / (self.moment_share * self.num_rounds))
        return Query("second_moment", (), self.moment_clip, FULL, ratio, (0.0,))

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The moment, then preconditioned steps."""
        if not isinstance(problem, GeneralisedLinear) or problem.curvature is None:
            hint = "a linear model whose loss has a largest second derivative"
            raise InputError("algorithm.name", "preconditioned_sgd", hint)
        moment = moment_of((yield Round({"start": w}, answer=w))["h"])
        floor = spectral_norm(public, self._moment, moment.shape[-1])
        values, vectors = torch.linalg.eigh(moment)
        inverse = (vectors / (problem.curvature * values.clamp_min(floor)).unsqueeze(-2)) @ vectors.mT
        mean = w
        for r in range(1, self.num_rounds + 1):
            g = (yield Round({"w": w}, answer=mean))["g"] + problem.public_gradient(w)
            w = problem.project(w - (inverse @ g.reshape(*moment.shape[:-1], -1)).flatten(-2))
            mean = mean + (w - mean) * 2 / (r + 1)  # weights 1, 2, .., r
        return mean

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": the noisy second moment} in the first round, then {"g": the noisy mean gradient at w}."""
        if "w" in broadcast:
            return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, FULL))}
        return {"h": ask(self._moment)}
