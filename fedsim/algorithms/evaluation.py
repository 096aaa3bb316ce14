"""Evaluation of a model in one round: the sum over silos of their histograms of class by score bin.

It trains nothing, so no scenario names it as its algorithm: `evaluate` asks for it after a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from numpy.random import Generator
from pydantic import Field
from torch import Tensor

from fedsim.algorithms.base import FULL
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf


@dataclass(frozen=True)
class Evaluation:
    """The silos' weighted mean histogram at the model that it is given, as shares of records."""

    bins: Annotated[int, Field(ge=2, description="B: bins of the predicted probability of class 1")] = 10
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """One round; returns (2B,), class 0 first."""
        return (yield Round({"w": w}, answer=w))["h"]

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": the noisy histogram over n, (silos, 2B)}."""
        options = (float(self.bins),)
        return {"h": ask(Query("score_histogram", (broadcast["w"],), 1.0, FULL, options=options))}
