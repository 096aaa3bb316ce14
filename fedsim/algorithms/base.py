"""Shared parts of algorithms: fields with one meaning everywhere, and the silo method of six of them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL as FULL
from fedsim.protocol.batch import Batch as Batch
from fedsim.protocol.batch import Fresh
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query
from fedsim.protocol.contract import Scalar as Scalar

if TYPE_CHECKING:
    import torch

Rounds = Annotated[int, Field(ge=1, description="R: communication rounds")]
StepSize = Annotated[Scalar, Field(gt=0, description="eta: step size")]
Clip = Annotated[Scalar, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
MomentClip = Annotated[
    float, Field(gt=0, description="bound on a record's squared norm in the second moment")
]
RoundBatch = Annotated[Batch, Field(description="K: which records a silo uses in a round")]
DifferenceClip = Annotated[float | None, Field(gt=0, description="of a difference; default 2 C")]
Ratio = Annotated[float, Field(gt=0, description="noise multiplier of a difference relative to a gradient's")]
RandomIterate = Annotated[bool, Field(description="return w_r, r uniform on 1..R")]
NoiseDecay = Annotated[
    float,
    Field(gt=0, le=1, description="rho: noise of round r is proportional to rho^(-(R - r) / 2), at no cost"),
]
_MOST_RATIOS = 8  # with batches drawn at random, since each is a grid of the accountant


class GradientMessages:
    """The silo method of minibatch algorithms: a message is a noisy mean gradient, linear in the answer.

    With `noise_decay` noise falls over the rounds, at the cost of equal noise. A broadcast is then named by
    its block of rounds, by which a silo knows its noise ratio.
    """

    linear: ClassVar[bool] = True
    num_rounds: int
    clip_norm: Scalar
    batch: Batch
    noise_decay: float = 1.0

    def __post_init__(self) -> None:
        if self.noise_decay == 1:
            return
        from fedsim.protocol.limits import LIMITS  # and torch, which a refused scenario does without

        most, hint = LIMITS.max_noise_ratio, ""
        if isinstance(self.batch, Fresh):
            hint = "1 with fresh batches: a record meets one release, so that equal noise costs least"
        elif self.noise_ratios[0] > most:
            least = most ** (-2 / (self.num_rounds - 1))
            hint = f"at least {least:.4g} for {self.num_rounds} rounds: no noise ratio is above {most:g}"
        if hint:
            raise InputError("noise_decay", self.noise_decay, hint)

    @property
    def noise_ratios(self) -> tuple[float, ...]:
        """Of each block of rounds; one round a block, or 8 blocks with batches drawn at random."""
        return noise_ratios(self.noise_decay, self.num_rounds, _MOST_RATIOS if self.batch.random else None)

    def sent(self, r: int, w: torch.Tensor) -> Message:
        """The broadcast of round r = 0, 1, .."""
        if self.noise_decay == 1:
            return {"w": w}
        return {f"block {r * len(self.noise_ratios) // self.num_rounds}": w}

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"g": the noisy mean gradient at the broadcast w, (silos, d)}."""
        if self.noise_decay == 1:
            return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}
        (name,) = (each for each in broadcast if each.startswith("block "))
        ratio = self.noise_ratios[int(name.split()[1])]
        return {"g": ask(Query("gradient", (broadcast[name],), self.clip_norm, self.batch, ratio))}


@lru_cache(maxsize=64)
def noise_ratios(decay: float, rounds: int, blocks: int | None = None) -> tuple[float, ...]:
    """c_r ~ decay^(-(R - r) / 2) for r = 1 .. R with sum of 1 / c_r^2 = R, the cost of equal noise: mu^2 of a
    run is the sum of 1 / (z c_r)^2.

    For a run whose rounds contract errors by `decay`, the last iterate has the least noise (Cauchy-Schwarz:
    sum_r decay^(2 (R - r)) c_r^2 under that constraint). With `blocks` of rounds, 1 / c^2 is a block's mean.

    >>> noise_ratios(0.25, 2)
    (1.5811388300841898, 0.7905694150420949)
    """
    count, worth = min(rounds, blocks or rounds), decay ** np.arange(rounds - 1, -1.0, -1.0)
    block = np.arange(rounds) * count // rounds
    mean = np.bincount(block, worth) / np.bincount(block)
    with np.errstate(divide="ignore"):
        return tuple(np.sqrt(worth.mean() / mean).tolist())


def moment_of(answer: torch.Tensor) -> torch.Tensor:
    """A noisy second moment as a matrix (.., D, D), from the answer to such a query; finite, or zero."""
    from fedsim.protocol.moments import from_svec  # and torch, which a refused scenario does without

    return from_svec(answer.nan_to_num(0.0, 0.0, 0.0))


def spectral_norm(public: Public, query: Query, side: int) -> float:
    """About the largest absolute eigenvalue of the noise on the silos' weighted second moment, (side, side).

    Noise of standard deviation s on a number of `svec` is a matrix with s / sqrt 2 beside its diagonal, whose
    eigenvalues reach to 2 sqrt(side) s / sqrt 2 (Wigner; Dwork, Talwar, Thakurta and Zhang 2014, Section 2).
    At least a millionth of the clip, so that what is divided by it stays finite.
    """
    return max(public.noise(query) * math.sqrt(2.0 * side), 1e-6 * float(query.clip))
