"""Logistic regression whose scores are clipped before loss and slope, as the thesis's MNIST code does it.

    l(s, y) = log(1 + e^c) - y c  with  c = min(max(s, -b), b),  and the slope sigmoid(c) - y.

Beyond the bound that slope is not the loss's derivative, which is 0 there: the published code clips the score
and goes on as if it had not. A coefficient still lies in (-1, 1), so that no guarantee changes.

References: A. Lowy (2023), section 3.2.5 and B.1.10, where b = 15.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsim.problems.glm import LogisticRegression

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClippedLogisticRegression(LogisticRegression):
    """Two classes 0 and 1; predictions are those of logistic regression.

    Args:
        score_bound: b.
    """

    score_bound: float = 15.0

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """sigmoid(c) - y."""
        return super().coefficient(self._clipped(scores), target, inverse_norm)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """log(1 + e^c) - y c."""
        return super().losses(self._clipped(scores), target)

    def _clipped(self, scores: Tensor) -> Tensor:
        return scores.clamp(-self.score_bound, self.score_bound)
