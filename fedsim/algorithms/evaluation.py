"""Evaluation of a model in one round: sums over silos of tables of counts.

It trains nothing, so no scenario names it as its algorithm: `evaluate` asks for it after a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from numpy.random import Generator
from pydantic import Field
from torch import Tensor

from fedsim.algorithms.base import FULL
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf
from fedsim.protocol.groups import Cells


@dataclass(frozen=True)
class Evaluation:
    """The silos' weighted mean tables at the model that it is given, as shares of records, side by side.

    First the histogram of class by score, (2, B), then the joint of group, label and predicted class,
    (groups, classes, classes). With both each has the noise of one of two releases.
    """

    bins: Annotated[int, Field(ge=0, description="B, of the probability of class 1; 0: no histogram")] = 10
    groups: Annotated[int, Field(ge=0, description="of records; 0: no joint")] = 0
    classes: Annotated[int, Field(ge=2, description="of the joint")] = 2
    threshold: Annotated[float, Field(gt=0, lt=1, description="of class 1 of two, for the joint")] = 0.5
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """One round; returns (2 B + cells of the joint,)."""
        return (yield Round({"w": w}, answer=w))["h"]

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"h": the noisy tables over n, (silos, 2 B + cells of the joint)}."""
        wanted: dict[str, tuple[float, ...]] = {"score_histogram": (float(self.bins),)} if self.bins else {}
        if self.groups:
            wanted["joint"] = (*Cells(self.groups, self.classes, True).options, self.threshold)
        at = (broadcast["w"],)
        *first, last = (Query(name, at, 1.0, FULL, options=options) for name, options in wanted.items())
        return {"h": torch.cat(ask(*first, last), -1) if first else ask(last)}
