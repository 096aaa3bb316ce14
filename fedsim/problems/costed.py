"""A loss with public costs of its predictions by group: l(s, y) + sum_j c[group, j] F_j(s).

The costs of a record are found by its label and group together, as one number in the place of its target:
label + classes x (group + 1), 0 in place of group + 1 where there is no group (`Cells.rows`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsim.problems import exact
from fedsim.problems.glm import GeneralisedLinear

if TYPE_CHECKING:  # a silo without a network loads none
    from fedsim.problems.network import NeuralNetwork


@dataclass(frozen=True, eq=False)
class Costed(GeneralisedLinear):
    """A loss of ours that gives probabilities, logistic or softmax, with costs; only gates have one."""

    base: GeneralisedLinear = field(kw_only=True)  # the loss
    rows: Tensor = field(kw_only=True)  # costs by row and class, (rows, classes), or (silos, rows, classes)
    error_name = "none"

    @classmethod
    def suits(cls, classes: int) -> bool:
        """Classes."""
        return classes >= 2

    def accepts(self, target: Tensor) -> Tensor:
        """Labels have been looked at before they became places of rows."""
        return target >= 0

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """l'(s, y) + J c, J = diag(F) - F F^T; of one score F (1 - F) (c_1 - c_0)."""
        slope = self.base.coefficient(scores, target % self.rows.shape[-1], inverse_norm)
        if self.num_outputs == 1:
            share = exact.sigmoid(scores)
            apart = self._of(self.rows[..., 1] - self.rows[..., 0], target)
            return slope.add_((share - share.square()).mul_(apart))
        costs = self._of(self.rows, target)
        share = exact.softmax(scores)
        return slope.add_(share * (costs - exact.total(share * costs).unsqueeze(-1)))

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """l(s, y) + sum_j c_j F_j."""
        known = self.base.probabilities(scores)
        assert known is not None
        costs = (known * self._of(self.rows, target)).sum(-1)
        return self.base.losses(scores, target % self.rows.shape[-1]) + costs

    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """The base's."""
        return self.base.error(scores, target % self.rows.shape[-1])

    def _of(self, rows: Tensor, target: Tensor) -> Tensor:
        """Those of `rows`, or of their differences, of targets (silos, rows), or as many as there are."""
        if self.rows.dim() == 2:
            return rows[target.long()]
        return rows[torch.arange(len(target))[:, None], target.long()]


def costed(problem: GeneralisedLinear | NeuralNetwork, rows: Tensor) -> GeneralisedLinear | NeuralNetwork:
    """The problem with these costs, for a silo's targets as above."""
    if not isinstance(problem, GeneralisedLinear):
        found = copy.copy(problem)
        found.__dict__["head"] = Costed(1, problem.num_outputs, base=problem.head, rows=rows)
        return found
    return Costed(problem.num_features, problem.num_outputs, problem.composite, base=problem, rows=rows)
