"""Clipped means without noise, at any points: what the attacker, who knows the records, computes for himself.

It uses the silo's gate and nothing else, at noise multiplier 0 and on full batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsim.attacks.gates import Data, cohort
from fedsim.attacks.setting import Setting
from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, ServerHalf
from fedsim.protocol.plan import Ask, Plan, QueryShape

Record = tuple[np.ndarray, float]
"""One record: features (f,) and target."""


def alone(record: Record) -> Data:
    """A silo of this one record, whose clipped mean is the record's clipped term."""
    return record[0][None, :], np.array([record[1]])


class _Asked:
    """The query that is due."""

    query: Query


@dataclass(frozen=True)
class _Direct:
    """Asks what it is handed, at broadcast points."""

    asked: _Asked
    linear: ClassVar[bool] = False

    def server(
        self, w: Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        """Nobody drives it."""
        raise NotImplementedError

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, Tensor]:
        """The mean at the points p0, p1."""
        points, query = tuple(broadcast[name] for name in sorted(broadcast)), self.asked.query
        return {"g": ask(Query(query.statistic, points, query.clip, FULL))}


class Bench:
    """Silos' clipped means, of a query of each of some shapes."""

    def __init__(self, setting: Setting, silos: Sequence[Data], runs: int, shapes: Sequence[QueryShape]):
        """`runs` of them side by side, each at points of its own."""
        plan = Plan(
            tuple((Ask(FULL, (QueryShape(shape.statistic, shape.points, 1.0),)),) for shape in shapes)
        )
        linear = isinstance(setting.resolved.problem, GeneralisedLinear)
        self._silos, self._runs, self._asked = len(silos), runs, _Asked()
        data = list(silos) if linear else list(silos) * runs  # networks share no records between runs
        self._gate = cohort(
            setting.resolved,
            _Direct(self._asked),
            plan,
            data,
            [0.0] * len(data),
            [""] * len(data),
            copies=runs if linear else 1,
        )

    def means(self, query: Query, place: int = 0) -> Tensor:
        """Clipped means of a query of the shape at `place`, to be asked once; (runs, silos, d).

        Points are (d,) or (runs, d), the clip a number or (runs, 1).
        """
        clip = query.clip.detach() if isinstance(query.clip, Tensor) else query.clip
        self._asked.query = Query(query.statistic, (), self._each(clip) if _rows(clip) else clip)
        broadcast = {f"p{k}": self._each(point.detach()) for k, point in enumerate(query.points)}
        return self._gate.answer(place, broadcast)["g"].view(self._runs, self._silos, -1)

    def _each(self, value: Tensor | float) -> Tensor:
        """A row for every member."""
        assert isinstance(value, Tensor)
        if value.dim() < 2:
            return value
        rows = value.expand(self._runs, -1)
        return rows.repeat_interleave(self._silos, 0).contiguous()


def _rows(clip: Tensor | float) -> bool:
    return isinstance(clip, Tensor) and clip.dim() == 2


def shared(query: Query) -> bool:
    """Whether all members are asked at the same points, with the same clip."""
    return all(point.dim() == 1 for point in query.points) and not _rows(query.clip)


def narrowed(query: Query) -> Query:
    """Where points are shared and the clip is a column all the same, its first entry."""
    if isinstance(query.clip, Tensor) and query.clip.dim() == 2 and all(p.dim() == 1 for p in query.points):
        return Query(query.statistic, query.points, float(query.clip[0, 0]), query.batch, query.noise_ratio)
    return query


def single(query: Query, row: int = 0) -> Query:
    """What one of the members was asked."""
    clip = query.clip
    if isinstance(clip, Tensor) and clip.dim() == 2:
        clip = float(clip[row if len(clip) > 1 else 0, 0])
    points = tuple(point if point.dim() == 1 else point[row] for point in query.points)
    return Query(query.statistic, points, clip, query.batch, query.noise_ratio)


def shape_of(query: Query) -> QueryShape:
    """The part of a query that sets its cost."""
    return QueryShape(query.statistic, len(query.points), float(query.noise_ratio))


def term(setting: Setting, record: Record, query: Query) -> Tensor:
    """A record's clipped term where all points are shared, (d,)."""
    return Bench(setting, [alone(record)], 1, [shape_of(query)]).means(query)[0, 0].to(torch.float64)
