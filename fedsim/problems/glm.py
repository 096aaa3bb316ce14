"""Generalised linear models: a record's gradient is coefficient times feature vector.

For features x (d,), target y and parameters W (features, outputs), the loss is l(x W, y) and its
gradient x outer l'(x W, y). The coefficient l' is all a clipped sum needs: the norm of the term is
|l'| |x|, so no (records x parameters) tensor is ever formed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from fedsim.problems import exact
from fedsim.problems.composite import Composite, HasComposite

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.problems.public_records import PublicRecords


@dataclass(frozen=True)
class GeneralisedLinear(HasComposite, ABC):
    """Minimise the weighted mean of l(x W, y) over all silos' records, plus the public part f1."""

    curvature: ClassVar[float | None] = None
    """h, the largest second derivative of a loss in its scores; None: `step_size: auto` has no rule."""
    typical_slope: ClassVar[float | None] = None
    """s, the norm of l' that half of the records have at the start; None: `clip_norm: auto` has no rule."""

    num_features: int  # of a record, the constant one included
    num_outputs: int = 1  # columns of W; scores are (..., records) for one, (..., records, outputs) else
    composite: Composite = field(default_factory=Composite)  # regulariser and constraint set

    @property
    def dimension(self) -> int:
        """d = features x outputs; the vector is W in row-major order."""
        return self.num_features * self.num_outputs

    def start(self, seed: int) -> Tensor:
        """Where a run begins, before projection: zero for every seed, or public records' minimiser; (d,)."""
        records = self.composite.records
        return torch.zeros(self.dimension) if records is None or records.start is None else records.start

    def mean_gradient(self, records: PublicRecords, w: Tensor) -> Tensor:
        """Gradient of the records' mean loss at w, (..., d)."""
        if self.num_outputs == 1:
            slope = self.coefficient(w @ records.features.T, records.target, records.inverse_norm)
            return slope @ records.features / len(records)
        if w.dim() > 1:
            return torch.stack([self.mean_gradient(records, each) for each in w])
        slope = self.coefficient(self.scores(records.features, w), records.target, records.inverse_norm)
        return (slope.T @ records.features).T.flatten() / len(records)

    def scores(self, features: Tensor, w: Tensor) -> Tensor:
        """x W for every record: (..., records) for one output, (..., records, outputs) else.

        At w, one point for all silos (d,) or one each (silos, d), of features (silos, records, features); or
        (records, features) with w (d,).
        """
        if self.num_outputs > 1:
            weights = w.reshape(*w.shape[:-1], self.num_features, self.num_outputs)
            if w.dim() == 1:  # transposed twice: up to four times faster for few outputs
                columns = weights.t() @ features.flatten(0, -2).t()
                return columns.t().contiguous().view(*features.shape[:-1], self.num_outputs)
            return features @ weights
        if w.dim() == 1:
            return features @ w
        # One row times the transpose: four times faster than a matrix-vector product in a batch.
        return torch.bmm(w.unsqueeze(1), features.transpose(1, 2)).squeeze(1)

    @classmethod
    @abstractmethod
    def suits(cls, classes: int) -> bool:
        """Whether the loss suits a target of `classes` classes; 0 stands for a number."""

    @classmethod
    def outputs(cls, classes: int) -> int:
        """Columns of W for a target of that many classes."""
        return 1

    @abstractmethod
    def accepts(self, target: Tensor) -> Tensor:
        """Which targets the loss is defined for, a mask in the shape of `target`."""

    @abstractmethod
    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """l'(score, y), in the shape of the scores, as a new tensor (the caller clips it in place).

        Scores are x W for every record, `target` and `inverse_norm` (..., records); the latter, 1 / |x| and 0
        for a zero vector, is for a loss smoothed in parameter space: others depend on score and target alone.
        """

    @abstractmethod
    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """l(score, y) for every record, (..., records)."""

    def probabilities(self, scores: Tensor) -> Tensor | None:
        """P(y = k) of every class, (..., records, classes); None where the loss gives none."""
        return None

    def numbers(self, scores: Tensor) -> Tensor:
        """The numbers that scores predict, (..., records), on the scale of the targets: the scores."""
        return scores

    @abstractmethod
    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """The test error of predictions made from the scores, a scalar."""

    @property
    @abstractmethod
    def error_name(self) -> str:
        """What `error` measures, in words."""


@dataclass(frozen=True)
class TwoClasses(GeneralisedLinear):
    """A loss of one score for classes 0 and 1."""

    error_name = "share of records misclassified"

    @classmethod
    def suits(cls, classes: int) -> bool:
        """Two classes."""
        return classes == 2

    def accepts(self, target: Tensor) -> Tensor:
        """0 and 1."""
        return (target == 0) | (target == 1)

    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """Share of records on the wrong side of score 0."""
        return ((scores > 0) != (target > 0.5)).double().mean()


@dataclass(frozen=True)
class OneNumber(GeneralisedLinear):
    """A loss of one score for a real target."""

    @classmethod
    def suits(cls, classes: int) -> bool:
        """A number."""
        return classes == 0

    def accepts(self, target: Tensor) -> Tensor:
        """Any finite number."""
        return target.isfinite()


@dataclass(frozen=True)
class LogisticRegression(TwoClasses):
    """Two classes 0 and 1, l(s, y) = log(1 + e^s) - y s; a coefficient lies in (-1, 1)."""

    curvature, typical_slope = 0.25, 0.5

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """sigmoid(s) - y."""
        return exact.sigmoid(scores).sub_(target)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """log(1 + e^s) - y s."""
        return exact.softplus(scores) - target * scores

    def probabilities(self, scores: Tensor) -> Tensor:
        """1 - sigmoid(s) and sigmoid(s)."""
        return torch.stack([exact.sigmoid(-scores), exact.sigmoid(scores)], dim=-1)


@dataclass(frozen=True)
class SoftmaxRegression(GeneralisedLinear):
    """k classes 0..k-1, l(s, y) = log sum_j e^(s_j) - s_y; a coefficient has norm at most sqrt(2)."""

    error_name = "share of records misclassified"
    curvature, typical_slope = 0.5, 0.7

    @classmethod
    def suits(cls, classes: int) -> bool:
        """Two classes or more."""
        return classes >= 2

    @classmethod
    def outputs(cls, classes: int) -> int:
        """One for each class."""
        return classes

    def accepts(self, target: Tensor) -> Tensor:
        """The integers 0 .. k-1."""
        return (target >= 0) & (target < self.num_outputs) & (target == target.floor())

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """softmax(s) - onehot(y)."""
        label = target.long().expand(scores.shape[:-1]).unsqueeze(-1)
        return exact.softmax(scores).scatter_add_(-1, label, scores.new_tensor(-1.0).expand(label.shape))

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """log sum_j e^(s_j) - s_y."""
        return exact.logsumexp(scores) - scores.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """softmax(s)."""
        return exact.softmax(scores)

    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """Share of records whose largest score is another class's."""
        return (scores.argmax(-1) != target).double().mean()


@dataclass(frozen=True)
class LinearRegression(OneNumber):
    """A real target, l(s, y) = (s - y)^2 / 2."""

    error_name = "root mean squared error relative to that of predicting the mean"
    curvature, typical_slope = 1.0, 0.5

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """s - y."""
        return scores - target

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """(s - y)^2 / 2."""
        return (scores - target).square() / 2

    def error(self, scores: Tensor, target: Tensor) -> Tensor:
        """sqrt(MSE / MSE of the constant prediction mean(y)); 1 is the naive predictor."""
        naive = (target - target.mean()).square().mean().clamp_min(torch.finfo(torch.float64).tiny)
        return ((scores - target).square().mean() / naive).sqrt()


@dataclass(frozen=True)
class ClippedLogisticRegression(LogisticRegression):
    """Logistic regression whose scores are clipped before loss and slope, as the thesis's MNIST code does it.

        l(s, y) = log(1 + e^c) - y c  with  c = min(max(s, -b), b),  and the slope sigmoid(c) - y.

    Beyond the bound that slope is not the loss's derivative, which is 0 there: the published code clips the
    score and goes on as if it had not. A coefficient still lies in (-1, 1), so that no guarantee changes.
    Predictions are those of logistic regression.

    Reference: A. Lowy (2023), section 3.2.5 and B.1.10, where b = 15.
    """

    score_bound: float = 15.0  # b

    def coefficient(self, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
        """sigmoid(c) - y."""
        return super().coefficient(self._clipped(scores), target, inverse_norm)

    def losses(self, scores: Tensor, target: Tensor) -> Tensor:
        """log(1 + e^c) - y c."""
        return super().losses(self._clipped(scores), target)

    def _clipped(self, scores: Tensor) -> Tensor:
        return scores.clamp(-self.score_bound, self.score_bound)


@dataclass(frozen=True)
class KinkedLoss(GeneralisedLinear):
    """A loss of one score with one kink, hinge or absolute error, as it is or Moreau-smoothed.

    The smoothed loss of a record is its Moreau envelope in parameter space,

        f_beta(w) = min_v f(v) + (beta / 2) |w - v|^2,   grad f_beta(w) = beta (w - p),  p = prox_{f/beta}(w).

    For f(w) = l(x.w) the minimiser moves along x only: v = w - t x has score u = s - t |x|^2 and costs
    (beta / 2) t^2 |x|^2 = (beta / (2 |x|^2)) (s - u)^2. So f_beta(w) = l_b(x.w), the envelope of l on the
    line with b = beta / |x|^2: a Huber-like function, whose derivative is m b cut to the range of l', where m
    is the signed distance of the score from the kink. With L = |x| (both losses have |l'| <= 1):

    - f_beta is convex, and beta-smooth in w: its curvature is b |x|^2 = beta or 0.
    - f_beta is L-Lipschitz: p minimises, so beta (w - p) is a subgradient of f at p, and those of an
      L-Lipschitz f have norm at most L. Here: |l_b'| <= 1, so |grad| <= |x|. The constant 2 L of Lowy (2023),
      Lemma 105, holds but is not needed: a clip at L stays inactive, and noise calibrated to L (Theorem 106)
      is enough.
    - f_beta <= f (take v = w), and f <= f_beta + L^2 / (2 beta): f(w) - f(v) - (beta / 2) |w - v|^2
      <= L r - beta r^2 / 2 with r = |w - v|, at most L^2 / (2 beta).

    At a kink the subgradient of the unsmoothed loss is taken to be 0. There rounding decides on which side a
    score falls, so equal runs on different groupings of silos may differ by more than rounding. Smoothed
    losses have a continuous gradient and are as comparable as any other.

    Reported losses and test errors are always the original loss's, never the smoothed one's.
    """

    typical_slope = 1.0
    smoothing: float | None = None  # beta, smoothness of the Moreau envelope; None: the loss itself

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


BUILT_IN: dict[str, type[GeneralisedLinear]] = {
    "logistic_regression": LogisticRegression,
    "softmax_regression": SoftmaxRegression,
    "linear_regression": LinearRegression,
    "hinge_loss": HingeLoss,
    "absolute_error": AbsoluteError,
}

OWN = frozenset({*BUILT_IN.values(), ClippedLogisticRegression})
"""Every linear problem of ours, those too that a field of another makes."""
