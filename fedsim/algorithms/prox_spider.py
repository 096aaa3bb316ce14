"""Noisy proximal SPIDER: A. Lowy, thesis (USC 2023), Algorithm 4, Theorem 44."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsim.protocol.batch import FULL, Batch
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_CLIP = 1e-6  # a silo refuses smaller ones, but for 0


@dataclass(frozen=True)
class ProxSPIDER:
    """Every q rounds a fresh gradient estimate h; in between h is corrected by how gradients changed.

    h_r = mean gradient at w_r if q divides r, else h_{r-1} + mean difference between w_r and w_{r-1};
    w_{r+1} = prox_{eta f1}(w_r - eta h_r). Differences are at most min(beta |w_r - w_{r-1}|, 2 C) where
    beta is known, so their noise shrinks with the step; else they are clipped at `difference_clip`.
    Returns w_R, or with `random_iterate` a uniform one of w_1 .. w_R, as in the theorem.
    """

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds")]
    period: Annotated[int, Field(ge=1, description="q: rounds between fresh estimates")]
    step_size: Annotated[float, Field(gt=0, description="eta: step size, 1 / (2 beta) in the theorem")]
    clip_norm: Annotated[float, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
    smoothness: Annotated[float | None, Field(gt=0, description="beta: of a record's loss, if known")] = None
    difference_clip: Annotated[float | None, Field(gt=0, description="of a difference; default 2 C")] = None
    random_iterate: Annotated[bool, Field(description="return w_r, r uniform on 1..R")] = False
    batch: Annotated[Batch, Field(description="K1: which records a fresh estimate uses")] = FULL
    difference_batch: Annotated[Batch, Field(description="K2: which records a difference uses")] = FULL
    difference_noise_ratio: Annotated[
        float, Field(gt=0, description="noise multiplier of a difference relative to a gradient's")
    ] = 1.0

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """R rounds; answers with the last iterate."""
        chosen = int(rng.integers(self.num_rounds)) if self.random_iterate else self.num_rounds - 1
        previous = returned = w
        for r in range(self.num_rounds):
            if r % self.period == 0:
                h = (yield Round({"w": w}, answer=w))["h"]
            else:
                h = h + (yield Round({"w": w, "previous": previous}, answer=w))["h"]
            previous, w = w, problem.prox(w - self.step_size * h, self.step_size)
            returned = w if r == chosen else returned
        return returned

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The noisy gradient, or the noisy change of the gradient since the round before."""
        w = broadcast["w"]
        if "previous" not in broadcast:
            return {"h": ask(Query("gradient", (w,), self.clip_norm, self.batch))}
        clip: float | Tensor = self.difference_clip or 2 * self.clip_norm
        if self.smoothness:
            step = (w - broadcast["previous"]).norm(dim=-1, keepdim=True)
            clip = torch.minimum(
                (self.smoothness * step).clamp_min(_LEAST_CLIP), torch.as_tensor(clip).to(step)
            )
        points, ratio = (w, broadcast["previous"]), self.difference_noise_ratio
        return {"h": ask(Query("gradient_difference", points, clip, self.difference_batch, ratio))}
