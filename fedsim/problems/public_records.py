"""Records that need no protection: they pass no gate, and are a part of f1 (thesis, chapter 2: semi-DP)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class PublicRecords:
    """f1 gains `weight` times the mean loss of these records, whose gradient is neither clipped nor noised.

    A silo whose half of an algorithm does without has none of them: features (0, f).
    """

    features: Tensor = field(repr=False)  # (n, features), as a model takes them
    target: Tensor = field(repr=False)  # (n,)
    inverse_norm: Tensor = field(repr=False)  # (n,), 1 / |x|, and 0 for a zero vector
    digest: str = ""  # SHA-256 of their file, which reports and offers name
    numbers: str = ""  # SHA-256 of these numbers, which keys a run's noise
    weight: float = 0.0  # kappa
    start: Tensor | None = field(default=None, repr=False)  # their own minimiser, where a run begins; (d,)
    inverse: Tensor | None = field(default=None, repr=False)  # preconditioner, (d, d), symmetric
    variance: float | None = None  # V^2 of their gradients at the start, where the weight is to be optimal

    @classmethod
    def of(
        cls, features: Tensor, target: Tensor, digest: str, numbers: str = "", weight: float = 0.0
    ) -> Self:
        """Records by their arrays."""
        inverse_norm = (1 / features.norm(dim=-1)).nan_to_num(posinf=0.0)
        return cls(features, target, inverse_norm, digest, numbers, weight=weight)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Features and target in float64."""
        return self.features.double(), self.target.double()

    @property
    def in_f1(self) -> bool:
        """Whether f1 has no closed proximal map because of them."""
        return self.weight > 0 or self.by_server

    @property
    def by_server(self) -> bool:
        """Whether the server has more to do with them than to take f1's gradient."""
        return self.variance is not None or self.inverse is not None
