"""Multi-stage acceleration: A. Lowy, thesis (USC 2023), B.1.6.1, Lemma 127, Theorems 36 and 37."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Annotated

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.base import FULL, Clip, GradientMessages, RoundBatch
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Public, PublicProblem, ServerHalf


@dataclass(frozen=True)
class MultiStageAcceleratedMinibatchSGD(GradientMessages):
    """Algorithm 1 restarted from where it ended; each stage halves the excess risk Delta.

    Stage k = 1, 2, ..: R_k = ceil(max{4 sqrt(2 beta / mu), 128 V^2 / (3 mu Delta 2^-(k+1))}) rounds with
    v_k = max{2 beta, sqrt(mu V^2 / (3 Delta 2^-(k-1) R_k (R_k+1) (R_k+2)))}, the inverse step. Ends when
    the next stage would exceed R, so a plan may have fewer rounds. V has no default: a plan is priced before
    its noise is known, so the stages cannot take the V that is really there.
    """

    num_rounds: Annotated[int, Field(ge=1, description="R: communication rounds at most")]
    smoothness: Annotated[float, Field(ge=1e-9, le=1e9, description="beta: of the objective")]
    strong_convexity: Annotated[float, Field(ge=1e-9, le=1e9, description="mu: of the objective")]
    initial_excess: Annotated[float, Field(ge=1e-9, le=1e9, description="Delta: bound on F(w_0) - F*")]
    clip_norm: Clip
    noise: Annotated[float, Field(ge=0, le=1e9, description="V: rms error of the mean gradient; 0: none")]
    batch: RoundBatch = FULL

    def __post_init__(self) -> None:
        if self.strong_convexity > self.smoothness:
            raise InputError("strong_convexity", self.strong_convexity, f"at most beta = {self.smoothness:g}")
        if next(self.stages(), None) is None:
            first = f"at least {self._rounds(1)}, the rounds of the first stage"
            raise InputError("num_rounds", self.num_rounds, first)

    def stages(self) -> Iterator[tuple[int, float]]:
        """(R_k, v_k) of every stage that fits."""
        k, left, mu = 1, self.num_rounds, self.strong_convexity
        while (rounds := self._rounds(k)) <= left:
            scale = 3 * self._excess(k) * rounds * (rounds + 1) * (rounds + 2)
            yield rounds, max(2 * self.smoothness, sqrt(mu * self.noise**2 / scale))
            k, left = k + 1, left - rounds

    def _excess(self, k: int) -> float:
        return max(self.initial_excess * 0.5 ** (k - 1), 1e-300)  # Delta 2^-(k-1), before stage k

    def _rounds(self, k: int) -> int:
        mu = self.strong_convexity
        noise = 128 * self.noise**2 / (3 * mu * self._excess(k) / 4)
        return ceil(max(4 * sqrt(2 * self.smoothness / mu), noise))

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The stages, one after the other."""
        for rounds, inverse_step in self.stages():
            stage = AcceleratedMinibatchSGD(rounds, 1 / inverse_step, self.clip_norm, self.strong_convexity)
            w = yield from stage.server(w, problem, public, rng)
        return w
