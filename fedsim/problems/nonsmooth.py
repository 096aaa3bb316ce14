"""Losses with a kink, hinge and absolute error, as they are or Moreau-smoothed.

The smoothed loss of a record is its Moreau envelope in parameter space,

    f_beta(w) = min_v f(v) + (beta / 2) |w - v|^2,    grad f_beta(w) = beta (w - p),  p = prox_{f / beta}(w).

For f(w) = l(x.w) the minimiser moves along x only: v = w - t x has score u = s - t |x|^2 and costs
(beta / 2) t^2 |x|^2 = (beta / (2 |x|^2)) (s - u)^2. So f_beta(w) = l_b(x.w), the envelope of l on the line
with b = beta / |x|^2: a Huber-like function, whose derivative is m b cut to the range of l', where m is the
signed distance of the score from the kink. With L = |x| (both losses have |l'| <= 1):

- f_beta is convex, and beta-smooth in w: its curvature is b |x|^2 = beta or 0.
- f_beta is L-Lipschitz: p minimises, so beta (w - p) is a subgradient of f at p, and those of an L-Lipschitz
  f have norm at most L. Here: |l_b'| <= 1, so |grad| <= |x|. The constant 2 L of Lowy (2023), Lemma 105,
  holds but is not needed: a clip at L stays inactive, and noise calibrated to L (Theorem 106) is enough.
- f_beta <= f (take v = w), and f <= f_beta + L^2 / (2 beta): f(w) - f(v) - (beta / 2) |w - v|^2
  <= L r - beta r^2 / 2 with r = |w - v|, at most L^2 / (2 beta).

At a kink, unsmoothed, the subgradient of the loss is taken to be 0. There rounding decides on which side a
score falls, so equal runs on different groupings of silos may differ by more than rounding; smoothed losses
have a continuous gradient and are as comparable as any other.

Losses and test errors that are reported are always the original loss's, never the smoothed one's.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedsim.problems.glm import GeneralisedLinear, OneNumber, TwoClasses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KinkedLoss(GeneralisedLinear):
    """A loss of one score with one kink.

    Args:
        smoothing: beta, smoothness of the Moreau envelope that is minimised instead; None: the loss itself.
    """

    smoothing: float | None = None

    @abstractmethod
    def from_kink(self, scores: Tensor, target: Tensor) -> Tensor:
        """m: the signed distance of the score from the kink; (..., records)."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """Least and largest derivative by m."""

    def slope(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """Derivative by m: the subgradient that is 0 at the kink, or the envelope's; (..., records)."""
        lower, upper = self.range
        distance = self.from_kink(scores, target)
        if self.smoothing is None:
            return distance.sign_().clamp_(lower, upper)
        # m / |x| before the second factor: 1 / |x|^2 alone would overflow for the shortest vectors.
        return distance.mul_(inverse_norm).mul_(self.smoothing * inverse_norm).clamp_(lower, upper)


@dataclass(frozen=True)
class HingeLoss(KinkedLoss, TwoClasses):
    """Two classes 0 and 1 as z = -1 and +1 (linear support vector machine), l(s, y) = max(0, 1 - z s)."""

    range = (0.0, 1.0)

    def from_kink(self, scores: Tensor, target: Tensor) -> Tensor:
        """1 - z s."""
        return 1 - (2 * target - 1) * scores

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """-z where 1 - z s > 0, else 0; smoothed: -z min(1, max(0, 1 - z s) beta / |x|^2)."""
        return self.slope(scores, target, inverse_norm).mul_(1 - 2 * target)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """max(0, 1 - z s), smoothed or not."""
        return self.from_kink(scores, target).clamp_min(0)


@dataclass(frozen=True)
class AbsoluteError(KinkedLoss, OneNumber):
    """A real target (least absolute deviations, median regression), l(s, y) = |s - y|."""

    error_name = "mean absolute error relative to that of predicting the median"
    range = (-1.0, 1.0)

    def from_kink(self, scores: Tensor, target: Tensor) -> Tensor:
        """s - y."""
        return scores - target

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """sign(s - y), 0 at 0; smoothed: (s - y) beta / |x|^2, cut to [-1, 1]."""
        return self.slope(scores, target, inverse_norm)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """|s - y|, smoothed or not."""
        return (scores - target).abs()

    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """MAE / MAE of the constant prediction median(y); 1 is the naive predictor."""
        naive = (target - target.median()).abs().mean().clamp_min(torch.finfo(torch.float64).tiny)
        return (scores - target).abs().mean() / naive
