"""Noisy proximal SPIDER: A. Lowy, thesis (USC 2023), Algorithm 4, Theorem 44.

A query asks for the difference between the last two points, with a clip of at most beta |w - w_previous|:

>>> algorithm = ProxSPIDER(num_rounds=4, period=2, step_size=0.5, clip_norm=1.0, smoothness=2.0)
>>> points = {"w": torch.tensor([[0.5]]), "previous": torch.tensor([[0.0]])}
>>> algorithm.silo(None, points, ask=lambda query: query.clip, memory={})
{'h': tensor([[1.]])}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Batch, Clip, DifferenceClip, RandomIterate, Ratio, Rounds, Scalar
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf
from fedsim.protocol.limits import LIMITS


@dataclass(frozen=True)
class ProxSPIDER:
    """Every q rounds a fresh gradient estimate h; in between h is corrected by how gradients changed.

    h_r = mean gradient at w_r if q divides r, else h_{r-1} + mean difference between w_r and w_{r-1};
    w_{r+1} = prox_{eta f1}(w_r - eta h_r). Differences are at most min(beta |w_r - w_{r-1}|, 2 C) where
    beta is known, so their noise shrinks with the step; else they are clipped at `difference_clip`.
    Returns w_R, or with `random_iterate` a uniform one of w_1 .. w_R, as in the theorem.
    """

    linear: ClassVar[bool] = True
    held: ClassVar[bool] = False  # whether a fresh estimate is asked of the silos of the round before
    num_rounds: Rounds
    period: Annotated[int, Field(ge=1, description="q: rounds between fresh estimates")]
    step_size: Annotated[Scalar, Field(gt=0, description="eta: step size, 1 / (2 beta) in the theorem")]
    clip_norm: Clip
    smoothness: Annotated[float | None, Field(gt=0, description="beta: of a record's loss, if known")] = None
    difference_clip: DifferenceClip = None
    random_iterate: RandomIterate = False
    batch: Annotated[Batch, Field(description="K1: which records a fresh estimate uses")] = FULL
    difference_batch: Annotated[Batch, Field(description="K2: which records a difference uses")] = FULL
    difference_noise_ratio: Ratio = 1.0

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """R rounds; answers with the last iterate."""
        chosen = int(rng.integers(self.num_rounds)) if self.random_iterate else self.num_rounds - 1
        previous = returned = w
        for r in range(self.num_rounds):
            if r % self.period == 0:
                hold = self.held and r > 0
                h = (yield Round({"w": w}, answer=w, participants="hold" if hold else "resample"))["h"]
            else:
                h = h + (yield Round({"w": w, "previous": previous}, answer=w))["h"]
            previous, w = w, problem.prox(w - self.step_size * h, self.step_size)
            returned = w if r == chosen else returned
        return returned

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": the noisy gradient, or its noisy change since the round before, (silos, d)}."""
        w = broadcast["w"]
        if "previous" not in broadcast:
            return {"h": ask(Query("gradient", (w,), self.clip_norm, self.batch))}
        clip = self.difference_clip or 2 * self.clip_norm
        if self.smoothness:
            step = (w - broadcast["previous"]).norm(dim=-1, keepdim=True)
            most = torch.as_tensor(clip).to(step)
            clip = (self.smoothness * step).clamp_min(LIMITS.min_clip).minimum(most)
        points, ratio = (w, broadcast["previous"]), self.difference_noise_ratio
        return {"h": ask(Query("gradient_difference", points, clip, self.difference_batch, ratio))}
