"""Public regularisers with parameters of their own: group lasso and ridge around a centre."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from fedsim.common.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GroupLasso:
    """weight sum_g sqrt(|g|) |w_g|_2 (Yuan and Lin, 2006).

    Args:
        weight: factor of the whole sum.
        groups: coordinates of w, group by group; disjoint. A coordinate in no group is not penalised.
    """

    weight: float = 0.0
    groups: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        seen: set[int] = set()
        for i, group in enumerate(self.groups):
            for j in group:
                if j in seen:
                    expected = f"groups must be disjoint, but {j} is named twice: no closed-form proximal map"
                    raise InputError(f"groups.{i}", list(group), expected)
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

    def prox(self, v: Tensor, step: float) -> Tensor:
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
