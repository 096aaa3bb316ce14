"""The public part f1 of the objective: regularisers and the constraint set, with an exact proximal map.

Everything acts on the last axis. `Composite.prox` composes closed forms; each step is exact because:

- Quadratics first. With a = 1 + step (l2 + lambda), c = (v + step lambda w0) / a and any g,
  step (g(y) + l2/2 |y|^2 + lambda/2 |y - w0|^2) + |y - v|^2 / 2 = a ((step / a) g(y) + |y - c|^2 / 2)
  up to a constant: completing the square. So a quadratic with any centre asks only for the proximal map of g,
  the indicator included, at c with step / a (Parikh and Boyd, Proximal Algorithms, 2014, section 2.2).
- l1 and group lasso: soft-thresholding, then group shrinkage (Yu, On decomposing the proximal map,
  NeurIPS 2013, Theorem 4, on each group: shrinkage only scales y_g by some s >= 0, and the subdifferential
  of |.|_1 at y is contained in that at s y).
- A ball around 0 after any sum of norms: projection last (the same theorem: norms are positively
  homogeneous and the ball's indicator is an increasing function of |y|_2).
- A box after l1: clamping last, since both separate into coordinates, and in one dimension the minimiser of
  a convex function over an interval is its minimiser on the line, clamped.

Group lasso within a box has no such form (a group's factor depends on which coordinates are clamped) and
is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.problems.fairness import Fairness
    from fedsim.problems.public_records import PublicRecords
    from fedsim.problems.regularisers import Box, GroupLasso, L2Ball, Ridge
    from fedsim.protocol.contract import Scalar


SERVES = "noisy_minibatch_sgd, accelerated_minibatch_sgd, fedadam, local_sgd, fedprox or scaffold"
"""Algorithms that take gradients of f1 (tests compare)."""


@dataclass(frozen=True)
class Composite:
    """f1(w) = l1 |w|_1 + (l2 / 2) |w|_2^2 + group lasso + ridge around a centre, over the constraint set.
    InputError for group lasso and a box together, whose proximal map has no closed form.
    """

    l1: float = 0.0
    l2: float = 0.0
    constraint: L2Ball | Box | None = None  # None: the whole space
    group_lasso: GroupLasso | None = None
    ridge: Ridge | None = None
    fairness: Fairness | None = None  # a penalty that is no part of f1, but of the costs that silos are sent
    records: PublicRecords | None = None  # of which `HasComposite` alone takes losses

    def __post_init__(self) -> None:
        if self.group_lasso and self.constraint and self.constraint.name == "box":
            hint = "group lasso within a box has no closed-form proximal map; use l2_ball or none"
            raise InputError("scenario.problem.constraint.name", "box", hint)

    @property
    def quadratic(self) -> float:
        """l2 + lambda: f1's weight of |w|^2 / 2, around whatever centre."""
        return self.l2 + (self.ridge.weight if self.ridge else 0.0)

    @property
    def empty(self) -> bool:
        """Whether f1 is 0 over the whole space."""
        parts = self.l1, self.quadratic, self.group_lasso, self.constraint
        return not any(parts) and not (self.records is not None and self.records.in_f1)

    def value(self, w: Tensor) -> Tensor:
        """f1 at w inside the set; (..., d) to (...)."""
        value = self.l1 * w.abs().sum(-1) + self.l2 / 2 * w.square().sum(-1)
        if self.group_lasso:
            value = value + self.group_lasso.value(w)
        return value + self.ridge.value(w) if self.ridge else value

    def public_gradient(self, w: Tensor) -> Tensor:
        """A subgradient of f1, without the indicator; (..., d) to (..., d). At a kink its norms count 0."""
        gradient = self.l1 * w.sign() + self.l2 * w if self.l1 or self.l2 else torch.zeros_like(w)
        if self.group_lasso:
            gradient = gradient + self.group_lasso.subgradient(w)
        return gradient + self.ridge.gradient(w) if self.ridge else gradient

    def project(self, w: Tensor) -> Tensor:
        """Euclidean projection on the constraint set."""
        return self.constraint.project(w) if self.constraint else w

    def prox(self, v: Tensor, step: Scalar) -> Tensor:
        """argmin over the set of step f1(y) + |y - v|^2 / 2; why this is exact stands above."""
        scale = 1 + step * self.quadratic
        if self.ridge:
            v = v + step * self.ridge.weight * v.new_tensor(self.ridge.centre)
        y = v.sign() * (v.abs() - step * self.l1).clamp_min(0) / scale
        if self.group_lasso:
            y = self.group_lasso.prox(y, step / scale)
        return self.project(y)


class HasComposite(ABC):
    """A problem's public part, as algorithms ask for it: that of its `composite`, public records included."""

    composite: Composite

    @abstractmethod
    def mean_gradient(self, records: PublicRecords, w: Tensor) -> Tensor:
        """Gradient of the records' mean loss at w, (..., d)."""

    def project(self, w: Tensor) -> Tensor:
        """Projection on the constraint set."""
        return self.composite.project(w)

    def prox(self, v: Tensor, step: Scalar) -> Tensor:
        """Proximal map of step times f1, the indicator included; InputError with public records in f1."""
        records = self.composite.records
        if records is not None and records.in_f1:
            hint = f"takes proximal steps, and public records have no closed form of them: use {SERVES}"
            weight = records.weight if records.variance is None else "optimal"
            raise InputError("scenario.problem.public.weight", weight, f"the algorithm {hint}")
        return self.composite.prox(v, step)

    def public_gradient(self, w: Tensor) -> Tensor:
        """Subgradient of f1 without the indicator, times the preconditioner where there is one."""
        gradient, records = self.composite.public_gradient(w), self.composite.records
        if records is not None and records.weight and len(records):
            gradient = gradient + records.weight * self.mean_gradient(records, w)
        return gradient if records is None or records.inverse is None else gradient @ records.inverse

    def descend(self, w: Tensor, gradient: Tensor, step_size: Scalar) -> Tensor:
        """A projected step along `gradient` and f1's: one pass where f1 is 0, since runs take thousands."""
        own, records = self.composite, self.composite.records
        bare = Composite(constraint=own.constraint, fairness=own.fairness, records=records)
        if own != bare or (records is not None and records.weight):
            gradient = gradient + self.public_gradient(w)
        return self.project(torch.addcmul(w, gradient, torch.as_tensor(step_size, dtype=w.dtype), value=-1))
