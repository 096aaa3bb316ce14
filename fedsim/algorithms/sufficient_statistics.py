"""Linear regression in one round, from noisy sufficient statistics: AdaSSP of Wang 2018 ("Revisiting
differentially private linear regression", Algorithm 2), with one release in place of three.

One second moment of (x, y) holds X^T X, X^T y and y^T y at once, so that no budget is divided. The ridge is
the spectral norm of its noise, which is public, so that no eigenvalue is released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, moment_of, spectral_norm
from fedsim.common.errors import InputError
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class SufficientStatistics:
    """w = project((A + ridge I)^-1 b) of the noisy moments A of features, and b of features and target.

    It needs many records: its noise is for a whole record, a gradient's for the clipped residual alone. Below
    some 3,000 records a silo rounds of gradients do better (docs/releases.md).
    """

    moment_clip: Annotated[float, Field(gt=0, description="bound on |x|^2 + y^2 of a record")] = 4.0
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """One round, one solution."""
        if not isinstance(problem, LinearRegression):
            raise InputError("algorithm.name", "sufficient_statistics", "problem: linear_regression with it")
        moment = moment_of((yield Round({"start": w}, answer=w))["h"])
        ridge = spectral_norm(public, Query("second_moment", (), self.moment_clip), moment.shape[-1])
        values, vectors = torch.linalg.eigh(moment[..., :-1, :-1])
        along = (vectors.mT @ moment[..., :-1, -1:]).squeeze(-1) / (values + ridge).clamp_min(ridge)
        return problem.project((vectors @ along.unsqueeze(-1)).squeeze(-1))

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": the noisy second moment of (x, y)}."""
        return {"h": ask(Query("second_moment", (), self.moment_clip, FULL, options=(1.0,)))}
