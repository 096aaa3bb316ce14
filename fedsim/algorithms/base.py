"""Shared parts of algorithms: fields with one meaning everywhere, and the silo method of six of them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedsim.protocol.batch import FULL as FULL
from fedsim.protocol.batch import Batch as Batch
from fedsim.protocol.contract import Asker, Memory, Message, PublicProblem, Query
from fedsim.protocol.contract import Scalar as Scalar

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
