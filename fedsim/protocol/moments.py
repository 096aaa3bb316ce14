"""Symmetric matrices as vectors whose L2 norm is the matrix's Frobenius norm.

Every pair of off-diagonal entries is one number times sqrt 2, so that Gaussian noise of variance s^2 a number
is noise of s^2 / 2 on an off-diagonal entry (the Gaussian orthogonal ensemble), and one record is not noised
twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def svec(matrix: Tensor) -> Tensor:
    """(.., D, D), symmetric, to (.., D (D + 1) / 2): the upper triangle by rows, off-diagonals times sqrt 2.

    >>> svec(torch.tensor([[1.0, 2.0], [2.0, 5.0]]))
    tensor([1.0000, 2.8284, 5.0000])
    """
    rows, columns, scale = _places(matrix.shape[-1], matrix.dtype)
    return matrix[..., rows, columns] * scale


def from_svec(vector: Tensor) -> Tensor:
    """The inverse of `svec`.

    >>> from_svec(svec(torch.tensor([[1.0, 2.0], [2.0, 5.0]])))
    tensor([[1., 2.],
            [2., 5.]])
    """
    side = (math.isqrt(8 * vector.shape[-1] + 1) - 1) // 2
    rows, columns, scale = _places(side, vector.dtype)
    matrix = vector.new_zeros(*vector.shape[:-1], side, side)
    matrix[..., rows, columns] = vector / scale
    matrix[..., columns, rows] = vector / scale
    return matrix


def _places(side: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = torch.triu_indices(side, side)
    scale = torch.full((len(rows),), math.sqrt(2.0), dtype=dtype)
    scale[rows == columns] = 1.0
    return rows, columns, scale
