"""The parts of f1 beside l1 and l2: group lasso, a ridge around a centre, and constraint sets.

Each acts on the last axis; `fedsim.problems.composite` says how they compose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field

from fedsim.common.choice import Choice, Shorthand
from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.protocol.contract import Scalar

Notion = Literal["demographic_parity", "equalized_odds", "equal_opportunity"]
"""Of fairness (`fedsim.problems.fairness`), which is a penalty on costs and no part of f1."""


@dataclass(frozen=True)
class GroupLasso:
    """weight sum_g sqrt(|g|) |w_g|_2 (Yuan and Lin, 2006)."""

    weight: float  # factor of the whole sum, > 0
    groups: tuple[tuple[int, ...], ...]  # of coordinates, disjoint; one in none is not penalised

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


Constraint = Annotated[WholeSpace | L2Ball | Box, Choice(), Shorthand()]
