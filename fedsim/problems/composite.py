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
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Choice, Shorthand

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.problems.fairness import Fairness
    from fedsim.problems.public_records import PublicRecords
    from fedsim.protocol.contract import Scalar


@dataclass(frozen=True)
class GroupLasso:
    """weight sum_g sqrt(|g|) |w_g|_2 (Yuan and Lin, 2006)."""

    weight: float = 0.0  # factor of the whole sum
    groups: tuple[tuple[int, ...], ...] = ()  # of coordinates, disjoint; one in none is not penalised

    def __post_init__(self) -> None:
        seen: set[int] = set()
        for i, group in enumerate(self.groups):
            for j in group:
                if j in seen:
                    hint = f"groups must be disjoint, but {j} is named twice: no closed-form proximal map"
                    raise InputError(f"groups.{i}", list(group), hint)
                seen.add(j)

    @cached_property
    def _members(self) -> Tensor:
        return torch.tensor([j for group in self.groups for j in group], dtype=torch.int64)

    @cached_property
    def _labels(self) -> Tensor:
        return torch.tensor([i for i, group in enumerate(self.groups) for _ in group], dtype=torch.int64)

    def _norms(self, w: Tensor) -> Tensor:
        """|w_g|_2 of every group, (..., groups)."""
        squares = w[..., self._members.to(w.device)].square()
        empty = w.new_zeros(*w.shape[:-1], len(self.groups))
        return empty.index_add_(-1, self._labels.to(w.device), squares).sqrt_()

    def _thresholds(self, w: Tensor) -> Tensor:
        """weight sqrt(|g|), (groups,)."""
        return self.weight * w.new_tensor([len(group) for group in self.groups]).sqrt()

    def _scaled(self, w: Tensor, factor: Tensor, rest: float) -> Tensor:
        """w_g times its group's factor, and what is in no group times `rest`."""
        scale = torch.full_like(w, rest)
        scale[..., self._members.to(w.device)] = factor[..., self._labels.to(w.device)]
        return w * scale

    def value(self, w: Tensor) -> Tensor:
        """(..., d) to (...)."""
        return (self._thresholds(w) * self._norms(w)).sum(-1)

    def subgradient(self, w: Tensor) -> Tensor:
        """weight sqrt(|g|) w_g / |w_g|, and 0 for a group of zeros; (..., d) to (..., d)."""
        norms = self._norms(w)
        return self._scaled(w, torch.where(norms > 0, self._thresholds(w) / norms, 0.0), 0.0)

    def prox(self, v: Tensor, step: Scalar) -> Tensor:
        """Every group shortened by step weight sqrt(|g|), or 0 where it is shorter than that."""
        norms = self._norms(v).clamp_min(torch.finfo(v.dtype).tiny)
        return self._scaled(v, (1 - step * self._thresholds(v) / norms).clamp_min(0), 1.0)


@dataclass(frozen=True)
class Ridge:
    """weight / 2 |w - centre|^2, public and never clipped."""

    weight: Annotated[float, Field(gt=0, description="lambda: weight of half the squared distance")]
    centre: Annotated[
        float | tuple[float, ...],
        Field(description="w0: one number for all parameters, or d numbers (row-major for several outputs)"),
    ] = 0.0

    def offset(self, w: Tensor) -> Tensor:
        """w - w0."""
        return w - w.new_tensor(self.centre)

    def value(self, w: Tensor) -> Tensor:
        """(..., d) to (...)."""
        return self.weight / 2 * self.offset(w).square().sum(-1)

    def gradient(self, w: Tensor) -> Tensor:
        """weight (w - w0); (..., d) to (..., d)."""
        return self.weight * self.offset(w)


@dataclass(frozen=True)
class WholeSpace:
    """The whole space."""

    name: ClassVar[str] = "none"

    def project(self, w: Tensor) -> Tensor:
        """w itself."""
        return w


@dataclass(frozen=True)
class L2Ball:
    """|w|_2 <= radius."""

    name: ClassVar[str] = "l2_ball"
    radius: Annotated[float, Field(gt=0, description="D / 2: radius of the ball around 0")]

    def project(self, w: Tensor) -> Tensor:
        """w, shortened to the radius where it is longer."""
        norm = w.norm(dim=-1, keepdim=True)
        return torch.where(norm > self.radius, w * (self.radius / norm.clamp_min(self.radius)), w)


@dataclass(frozen=True)
class Box:
    """lower <= w_j <= upper."""

    name: ClassVar[str] = "box"
    lower: Annotated[float, Field(description="least value of every parameter")]
    upper: Annotated[float, Field(description="largest value of every parameter")]

    def __post_init__(self) -> None:
        if self.lower > self.upper:
            raise InputError("lower", self.lower, f"at most upper, {self.upper}")

    def project(self, w: Tensor) -> Tensor:
        """Every coordinate clamped."""
        return w.clamp(self.lower, self.upper)


SERVES = "noisy_minibatch_sgd, accelerated_minibatch_sgd, fedadam, local_sgd, fedprox or scaffold"
"""Algorithms that take gradients of f1 (tests compare)."""
Constraint = Annotated[WholeSpace | L2Ball | Box, Choice(), Shorthand()]


@dataclass(frozen=True)
class Composite:
    """f1(w) = l1 |w|_1 + (l2 / 2) |w|_2^2 + group lasso + ridge around a centre, over the constraint set.
    InputError for group lasso and a box together, whose proximal map has no closed form.
    """

    l1: float = 0.0
    l2: float = 0.0
    constraint: Constraint = WholeSpace()
    group_lasso: GroupLasso = field(default_factory=GroupLasso)
    ridge: Ridge = field(default_factory=lambda: Ridge(0.0))
    fairness: Fairness | None = None  # a penalty that is no part of f1, but of the costs that silos are sent
    records: PublicRecords | None = None  # of which `HasComposite` alone takes losses

    def __post_init__(self) -> None:
        if self.group_lasso.weight and isinstance(self.constraint, Box):
            hint = "group lasso within a box has no closed-form proximal map; use l2_ball or none"
            raise InputError("scenario.problem.constraint.name", "box", hint)

    def value(self, w: Tensor) -> Tensor:
        """f1 at w inside the set; (..., d) to (...)."""
        value = self.l1 * w.abs().sum(-1) + self.l2 / 2 * w.square().sum(-1)
        if self.group_lasso.weight:
            value = value + self.group_lasso.value(w)
        return value + self.ridge.value(w) if self.ridge.weight else value

    def public_gradient(self, w: Tensor) -> Tensor:
        """A subgradient of f1, without the indicator; (..., d) to (..., d). At a kink its norms count 0."""
        gradient = self.l1 * w.sign() + self.l2 * w if self.l1 or self.l2 else torch.zeros_like(w)
        if self.group_lasso.weight:
            gradient = gradient + self.group_lasso.subgradient(w)
        return gradient + self.ridge.gradient(w) if self.ridge.weight else gradient

    def project(self, w: Tensor) -> Tensor:
        """Euclidean projection on the constraint set."""
        return self.constraint.project(w)

    def prox(self, v: Tensor, step: Scalar) -> Tensor:
        """argmin over the set of step f1(y) + |y - v|^2 / 2; why this is exact stands above."""
        scale = 1 + step * (self.l2 + self.ridge.weight)
        if self.ridge.weight:
            v = v + step * self.ridge.weight * v.new_tensor(self.ridge.centre)
        y = v.sign() * (v.abs() - step * self.l1).clamp_min(0) / scale
        if self.group_lasso.weight:
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
        step = torch.as_tensor(step_size, dtype=w.dtype)
        return self.project(torch.addcmul(w, gradient, step, value=-1))
