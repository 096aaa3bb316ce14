"""Alternate noisy SPIDER: A. Lowy, thesis (USC 2023), Algorithm 25 (the experiments of B.2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Batch, Clip, DifferenceClip, RandomIterate, Ratio, StepSize
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class SPIDERAlternate:
    """Rounds alternate between a fresh gradient and the change of the gradient over the last step.

    Even rounds: v = sum_i p_i [gradient at w]; odd ones: v += sum_i p_i [gradient difference between w and
    the w before]; always w <- prox_{eta f1}(w - eta v). The public v is added by the server and not, as
    printed, by each silo, since coefficients of the silos of one round need not sum to 1. A difference and
    the gradient after it are asked of the same silos. Differences have another clip, hence another noise.
    A step follows the last gradient too, which the printed version pays for and leaves unused. Returns
    w_R, or with `random_iterate` a uniform one of w_1 .. w_R.
    """

    linear: ClassVar[bool] = True
    num_rounds: Annotated[int, Field(ge=1, description="R = 2 E - 1: communication rounds")]
    step_size: StepSize
    clip_norm: Clip
    difference_clip: DifferenceClip = None
    random_iterate: RandomIterate = False
    batch: Annotated[Batch, Field(description="K2: which records a gradient uses")] = FULL
    difference_batch: Annotated[Batch, Field(description="K1: which records a difference uses")] = FULL
    difference_noise_ratio: Ratio = 1.0

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """R rounds; answers with the last iterate."""
        chosen = int(rng.integers(self.num_rounds)) if self.random_iterate else self.num_rounds - 1
        previous = returned = w
        for r in range(self.num_rounds):
            if r % 2 == 0:
                v = (yield Round({"w": w}, answer=w, participants="hold" if r else "resample"))["v"]
            else:
                v = v + (yield Round({"w": w, "previous": previous}, answer=w))["v"]
            previous, w = w, problem.prox(w - self.step_size * v, self.step_size)
            returned = w if r == chosen else returned
        return returned

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"v": the noisy gradient, or its noisy change since the round before, (silos, d)}."""
        w = broadcast["w"]
        if "previous" not in broadcast:
            return {"v": ask(Query("gradient", (w,), self.clip_norm, self.batch))}
        clip = self.difference_clip or 2 * self.clip_norm
        points, ratio = (w, broadcast["previous"]), self.difference_noise_ratio
        return {"v": ask(Query("gradient_difference", points, clip, self.difference_batch, ratio))}
