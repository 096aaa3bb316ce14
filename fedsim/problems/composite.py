"""The public part f1 of the objective: l1 and l2 regularisers, and the constraint set.

Everything acts on the last axis. The proximal maps of sums are exact: soft-thresholding followed by
scaling followed by projection is the prox of l1 + l2 + indicator for an L2 ball centred at 0
(Yu, "On decomposing the proximal map", NeurIPS 2013) and, coordinate by coordinate, for a box.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WholeSpace:
    """No constraint."""

    def project(self, w: Tensor) -> Tensor:
        """w itself."""
        return w


@dataclass(frozen=True)
class L2Ball:
    """{w: |w|_2 <= radius}."""

    radius: float

    def project(self, w: Tensor) -> Tensor:
        """w, shortened to the radius where it is longer."""
        norm = w.norm(dim=-1, keepdim=True)
        return torch.where(norm > self.radius, w * (self.radius / norm.clamp_min(self.radius)), w)


@dataclass(frozen=True)
class Box:
    """{w: lower <= w_j <= upper for every j}."""

    lower: float
    upper: float

    def project(self, w: Tensor) -> Tensor:
        """Every coordinate clamped."""
        return w.clamp(self.lower, self.upper)


Constraint = WholeSpace | L2Ball | Box


@dataclass(frozen=True)
class Composite:
    """f1(w) = l1 |w|_1 + (l2 / 2) |w|_2^2 over the constraint set."""

    l1: float = 0.0
    l2: float = 0.0
    constraint: Constraint = WholeSpace()

    def value(self, w: Tensor) -> Tensor:
        """f1 at w inside the set; (..., d) to (...)."""
        return self.l1 * w.abs().sum(-1) + self.l2 / 2 * w.square().sum(-1)

    def public_gradient(self, w: Tensor) -> Tensor:
        """A subgradient of f1, without the indicator; (..., d) to (..., d)."""
        return self.l1 * w.sign() + self.l2 * w

    def project(self, w: Tensor) -> Tensor:
        """Euclidean projection on the constraint set."""
        return self.constraint.project(w)

    def prox(self, v: Tensor, step: float) -> Tensor:
        """argmin over the set of step f1(y) + |y - v|^2 / 2."""
        soft = v.sign() * (v.abs() - step * self.l1).clamp_min(0)
        return self.project(soft / (1 + step * self.l2))
