"""Linear regression in one round that protects labels alone: Epasto, Mao, Medina, Mirrokni, Vassilvitskii and
Zhong, "Smoothly bounding user contributions in differential privacy", NeurIPS 2020, Algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from numpy.random import Generator

from fedsim.algorithms.base import FULL, Clip
from fedsim.common.errors import InputError
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class LabelRegression:
    """The weighted mean of the silos' least-squares solutions, each with noise for its labels alone.

    **Features are not protected**: the solution is made of them as they are. A label is held to [-1, 1], the
    declared range, and `clip_norm` bounds n times the weight that a record's label has in the solution.
    """

    clip_norm: Clip = 8.0
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """One round."""
        if not isinstance(problem, LinearRegression):
            raise InputError("algorithm.name", "label_regression", "problem: linear_regression with it")
        return problem.project((yield Round({"w": w}, answer=w))["w"])

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"w": the silo's noisy solution, (silos, d)}."""
        return {"w": ask(Query("label_projection", (), self.clip_norm, FULL))}
