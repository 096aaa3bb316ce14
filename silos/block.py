"""Records of silos of similar size, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Records of `members` (positions in the cohort), each padded to the same number of rows.

    Args:
        features: (silos, rows, features).
        target: (silos, rows).
        inverse_norm: 1 / |x| per row, 0 for a zero row; (silos, rows).
        mask: 1 for a row that counts, 0 for one that adds nothing: padding, and for a network a record that
            counts as the zero vector; None where all such rows are zero vectors of a linear model.
    """

    members: list[int]
    features: Tensor
    target: Tensor
    inverse_norm: Tensor
    mask: Tensor | None = None
