"""Weighted sums of records, in float64; of float32 records too, with rounding that the clip makes up for.

Guarantee: replacing one record, whose term is bounded by `KEPT` times the clip, moves the sum by at most
2 clip. Rounding of a sum of P terms depends on all of them: each of P additions errs by at most u times a
partial sum, so two sums that differ in one term drift apart by up to P^2 u clip besides, u = 2^-24 in
float32. Over a whole silo that is no small thing (a sum of 2,048 can be made to move by 1.03 times 2 clip),
so float32 is summed `PIECE` rows at a time, P^2 u / 2 = 3e-5 of 2 clip, and pieces are added in float64.
In float64, where u = 2^-53, nothing is held back for it: 6e-11 of 2 clip at 1,000 records, 2e-6 at 200,000.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PIECE = 32

KEPT = {torch.float64: 1.0, torch.float32: 1 - 1e-4}
"""The share of the clip that terms are shortened to: for the sum's rounding, and for that of clip / |x|."""


def padded_rows(rows: int, dtype: torch.dtype) -> int:
    """The number of rows at which a block is summed without a copy."""
    return rows if dtype == torch.float64 else rows + -rows % PIECE


def weighted_sum(weights: Tensor, features: Tensor) -> Tensor:
    """Sum over rows of weight times feature vector.

    Args:
        weights: (silos, columns, rows).
        features: (silos, rows, features), of the same type.

    Returns:
        (silos, columns, features), float64.
    """
    if features.dtype == torch.float64:
        return torch.bmm(weights, features)
    if missing := -features.shape[1] % PIECE:
        weights, features = pad(weights, (0, missing)), pad(features, (0, 0, 0, missing))
    silos, rows, width = features.shape
    by_piece = weights.reshape(silos, -1, rows // PIECE, PIECE).transpose(1, 2)
    sums = torch.bmm(by_piece.flatten(0, 1), features.reshape(-1, PIECE, width))
    return sums.view(silos, rows // PIECE, -1, width).sum(1, dtype=torch.float64)
