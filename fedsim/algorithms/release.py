"""One-shot releases: statistics of the silos' records, combined. `fedsim.release` asks and interprets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from numpy.random import Generator
from pydantic import Field

from fedsim.algorithms.base import FULL
from fedsim.common.errors import InputError
from fedsim.protocol.contract import Asker, Memory, Message, Public, PublicProblem, Query, Round, ServerHalf
from fedsim.protocol.statistics import statistic


class Item(NamedTuple):
    """A query of every record. With `columns`, each (feature, lower, upper), it is of these features alone,
    mapped from their range to [-1, 1], and of the constant one, which is the last.
    """

    statistic: str
    options: tuple[float, ...]
    clip: float = 1.0
    noise_ratio: float = 1.0
    columns: tuple[tuple[int, float, float], ...] = ()

    def query(self, features: int, dtype: torch.dtype) -> Query:
        """Of records of so many features."""
        made = torch.zeros(len(self.columns) + 1, features, dtype=dtype)
        for row, (place, lower, upper) in enumerate(self.columns):
            made[row, place], made[row, -1] = 2 / (upper - lower), (lower + upper) / (lower - upper)
        made[-1, -1] = 1.0
        mapped = made if self.columns else None
        return Query(self.statistic, (), self.clip, FULL, self.noise_ratio, self.options, mapped)


@dataclass(frozen=True)
class Release:
    """No model: a round for each item, and the silos' answers, weighed and added, one after the other."""

    items: Annotated[tuple[Item, ...], Field(min_length=1, description="what is asked of every silo, once")]
    linear: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def server(self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The answers as one vector."""
        answers = []
        for number, item in enumerate(self.items):
            if statistic(item.statistic).drawn and (public.summed or len(public.names) > 1):
                hint = "a histogram: one silo's choice cannot be added to another's"
                raise InputError("scenario.algorithm.items", item.statistic, hint)
            asked = {"item": torch.tensor([float(number)], dtype=w.dtype)}
            answers.append((yield Round(asked, answer=w))["answer"])
        return torch.cat(answers)

    def silo(self, problem: PublicProblem, broadcast: Message, ask: Asker, memory: Memory) -> Message:
        """{"answer": to the item of this number}."""
        from fedsim.protocol.passes import features_of  # with torch, which a refused scenario does without

        (number,) = broadcast["item"]
        return {"answer": ask(self.items[int(number)].query(features_of(problem), number.dtype))}
