"""Noisy proximal SVRG: A. Lowy, thesis (USC 2023), Algorithm 2, Theorem 42."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL, Batch, Clip, Ratio, StepSize
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class ProxSVRG:
    """A full gradient at an anchor once per epoch, then steps that only ask how the gradient changed.

    Per epoch: g = sum_i p_i grad F0_i(anchor), then Q times w <- prox_{eta f1}(w - eta (g + d)), d the
    silos' mean of clipped differences of gradients at w and at the anchor. The two kinds of release
    have different clips, hence different noise. Returns a uniform one of the points that the E Q steps were
    taken from (an epoch's w_0 .. w_{Q-1}), as the theorem does: the last point is paid for and not used.
    """

    linear: ClassVar[bool] = True
    epochs: Annotated[int, Field(ge=1, description="E: full gradients")]
    inner_steps: Annotated[int, Field(ge=1, description="Q: steps per epoch")]
    step_size: StepSize
    clip_norm: Clip
    difference_clip: Annotated[
        float, Field(gt=0, description="bound on the change of a record's gradient (the paper's 2 L)")
    ]
    batch: Annotated[Batch, Field(description="K: which records a silo uses in an inner step")] = FULL
    difference_noise_ratio: Ratio = 1.0

    def __post_init__(self) -> None:
        if self.epochs * self.inner_steps < 2:
            hint = "at least 2 where epochs is 1: the only inner iterate is where the run begins"
            raise InputError("inner_steps", self.inner_steps, hint)

    @property
    def num_rounds(self) -> int:
        """E (1 + Q)."""
        return self.epochs * (1 + self.inner_steps)

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """E epochs; the silos of an epoch are held, since its steps correct their anchor gradient."""
        chosen = int(rng.integers(self.epochs * self.inner_steps))
        returned = w
        for epoch in range(self.epochs):
            anchor = w
            g = (yield Round({"anchor": anchor}, answer=w))["g"]
            for step in range(self.inner_steps):
                returned = w if epoch * self.inner_steps + step == chosen else returned
                d = (yield Round({"w": w, "anchor": anchor}, answer=w, participants="hold"))["d"]
                w = problem.prox(w - self.step_size * (g + d), self.step_size)
        return returned

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """The noisy full gradient at the anchor, or the noisy change of the gradient since."""
        anchor = broadcast["anchor"]
        if "w" not in broadcast:
            return {"g": ask(Query("gradient", (anchor,), self.clip_norm))}
        points, ratio = (broadcast["w"], anchor), self.difference_noise_ratio
        return {"d": ask(Query("gradient_difference", points, self.difference_clip, self.batch, ratio))}
