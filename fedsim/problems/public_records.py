"""Records that need no protection: they pass no gate, and are a part of f1 (thesis, chapter 2: semi-DP)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class PublicRecords:
    """f1 gains `weight` times the mean loss of these records, whose gradient is neither clipped nor noised.

    A silo whose half of an algorithm does without has none of them.
    """

    features: Tensor = field(repr=False)  # (n, features), as a model takes them
    target: Tensor = field(repr=False)  # (n,)
    digest: str = ""  # SHA-256 of their file, which reports and offers name
    weight: float = 0.0  # kappa
    start: Tensor | None = field(default=None, repr=False)  # their own minimiser, where a run begins; (d,)
    inverse: Tensor | None = field(default=None, repr=False)  # preconditioner, (d, d), symmetric
    notes: tuple[str, ...] = ()  # for a report
    variance: float | None = None  # V^2 of their gradients at the start, where the weight is to be optimal

    def __len__(self) -> int:
        return len(self.target)

    @cached_property
    def inverse_norm(self) -> Tensor:
        """1 / |x|, and 0 for a zero vector; (n,)."""
        inverse: Tensor = 1 / self.features.norm(dim=-1)
        return inverse.nan_to_num(posinf=0.0)

    def to(self, dtype: torch.dtype) -> PublicRecords:
        """The same in this type."""
        return replace(self, features=self.features.to(dtype), target=self.target.to(dtype))

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Features and target in float64."""
        return self.features.double(), self.target.double()

    @property
    def by_server(self) -> bool:
        """Whether the server has more to do with them than to take f1's gradient."""
        return self.variance is not None or self.inverse is not None

    @property
    def in_f1(self) -> bool:
        """Whether f1 has no closed proximal map because of them."""
        return self.weight > 0 or self.by_server
