"""Shared parts of algorithms: fields with one meaning everywhere, and the silo method of six of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedsim.protocol.batch import FULL as FULL
from fedsim.protocol.batch import Batch as Batch
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query
from fedsim.protocol.contract import Scalar as Scalar

if TYPE_CHECKING:
    import torch

Rounds = Annotated[int, Field(ge=1, description="R: communication rounds")]
StepSize = Annotated[Scalar, Field(gt=0, description="eta: step size")]
Clip = Annotated[Scalar, Field(gt=0, description="C: bound on a record's gradient (the paper's L)")]
RoundBatch = Annotated[Batch, Field(description="K: which records a silo uses in a round")]
DifferenceClip = Annotated[float | None, Field(gt=0, description="of a difference; default 2 C")]
Ratio = Annotated[float, Field(gt=0, description="noise multiplier of a difference relative to a gradient's")]
RandomIterate = Annotated[bool, Field(description="return w_r, r uniform on 1..R")]


class GradientMessages:
    """The silo method of minibatch algorithms: a message is a noisy mean gradient, linear in the answer."""

    linear: ClassVar[bool] = True
    clip_norm: Scalar
    batch: Batch

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"g": the noisy mean gradient at the broadcast w, (silos, d)}."""
        return {"g": ask(Query("gradient", (broadcast["w"],), self.clip_norm, self.batch))}


def moment_of(answer: torch.Tensor) -> torch.Tensor:
    """A noisy second moment as a matrix (.., D, D), from the answer to such a query; finite, or zero."""
    from fedsim.protocol.moments import from_svec  # and torch, which a refused scenario does without

    return from_svec(answer.nan_to_num(0.0, 0.0, 0.0))


def spectral_norm(public: Public, noise_ratio: float, clip: float, side: int) -> float:
    """About the largest absolute eigenvalue of the noise on the silos' weighted second moment, (side, side).

    Noise of standard deviation s on a number of `svec` is a matrix with s / sqrt 2 beside its diagonal, whose
    eigenvalues reach to 2 sqrt(side) s / sqrt 2 (Wigner; Dwork, Talwar, Thakurta and Zhang 2014, Section 2).
    At least a millionth of the clip, so that what is divided by it stays finite.
    """
    s = noise_ratio * public.mean_noise * math.sqrt(2.0) * clip
    return max(s * math.sqrt(2.0 * side), 1e-6 * clip)
