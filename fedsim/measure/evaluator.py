"""A model's error and loss on test records. Simulation only: no silo releases them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedsim.data.federation import SiloSplit
from fedsim.measure.objective import Risk, TrainingObjective
from fedsim.problems.kinds import Problem


class SiloTest(NamedTuple):
    """A model on one silo's own test records; None where they do not define the number."""

    silo: str
    error: float | None
    loss: float | None
    test_records: int


class Evaluator:
    """Error and loss on the pooled test records.

    Args:
        problem: what is minimised.
        silos: all of them, in canonical order.
        dtype: of features and parameters.
        objective: the training objective, where it is to be measured too.
    """

    def __init__(
        self,
        problem: Problem,
        silos: Sequence[SiloSplit],
        dtype: torch.dtype,
        objective: TrainingObjective | None = None,
    ) -> None:
        self.objective = objective
        self._problem = problem
        self._features = torch.cat([torch.as_tensor(silo.test_features) for silo in silos]).to(dtype)
        self._target = torch.cat([torch.as_tensor(silo.test_target) for silo in silos]).to(dtype)
        self._names = [silo.name for silo in silos]
        self._counts = [len(silo.test_target) for silo in silos]

    def __call__(self, w: Tensor) -> tuple[float, float]:
        """(error, mean loss) of the parameters w, (d,)."""
        scores = self._problem.scores(self._features, w)
        loss = self._problem.losses(scores, self._target).mean()
        return float(self._problem.error(scores, self._target)), float(loss)

    def risk(self, w: Tensor) -> Risk:
        """The training objective's, at w, (d,)."""
        return Risk(None, None) if self.objective is None else self.objective(w)

    def by_silo(self, w: Tensor) -> list[SiloTest]:
        """Each silo's own test records alone, in canonical order; an error relative to the mean of the
        targets does not exist where a silo has no records, or targets that are all alike.
        """
        scores = self._problem.scores(self._features, w)
        losses = self._problem.losses(scores, self._target)
        parts = (torch.split(tensor, self._counts) for tensor in (scores, self._target, losses))
        measured = []
        for name, own, target, loss in zip(self._names, *parts, strict=True):
            error = float(self._problem.error(own, target)) if len(target) else math.nan
            values = (_defined(error), _defined(float(loss.mean())) if len(target) else None)
            measured.append(SiloTest(name, *values, len(target)))
        return measured


class Unseen(Evaluator):
    """Measures nothing: for runs whose measurements, errors included, nobody may see."""

    def __init__(self) -> None:
        """Takes no records."""
        self.objective = None

    def __call__(self, w: Tensor) -> tuple[float, float]:
        """Nothing."""
        return math.nan, math.nan

    def by_silo(self, w: Tensor) -> list[SiloTest]:
        """Nothing."""
        return []


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) and value < _DIVIDED_BY_ZERO else None


_DIVIDED_BY_ZERO = 1e100
