"""Kernels that round a row by its place: a last bit by address, or among the last rows.

How a processor's libraries round is its own affair, so bits are moved here where those of some processors
were seen to move: MKL's products by whether a row begins at 16 bytes, OpenBLAS's matrix-vector product in the
rows that four do not divide, torch's sigmoid and softplus in the last numbers, a chunk of records by address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from fedsim.problems.network_pass import Matrix

_UP, _DOWN = 1 + 2.0**-52, 1 - 2.0**-52


def _by_address(x: Tensor) -> Tensor:
    """Rows (rows, features), every other number a bit larger where the row does not begin at 16 bytes."""
    shifted = (x.data_ptr() // 8 + torch.arange(len(x)) * x.stride(0)) % 2 == 1
    return torch.where(shifted[:, None] & (torch.arange(x.shape[1]) % 2 == 0), x * _UP, x)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Torch's, by address."""
    return functional.linear(_by_address(x), weight, bias)


def scores(features: Tensor, w: Tensor, outputs: int = 1) -> Tensor:
    """x W by BLAS; of one output, the rows that are left over by four have other last bits."""
    weights = w.reshape(*w.shape[:-1], features.shape[-1], outputs)
    if outputs == 1 and (rest := features.shape[-2] % 4):
        features = features.clone()
        features[..., -rest:, ::2] *= _UP
    found = torch.from_numpy(np.matmul(features.numpy(), weights.numpy()))
    return found.squeeze(-1) if outputs == 1 else found


def _outputs(matrix: Matrix, x: Tensor, inputs: Tensor) -> Tensor:
    return linear(inputs, matrix._weight, matrix.bias)


def _unrounded(matrix: Matrix, x: Tensor, own: bool = False) -> Tensor:
    return x


def _last_numbers(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def rounded(x: Tensor, *given: Any) -> Tensor:
        found = function(x, *given).contiguous()
        if rest := x.numel() % 16:
            found.view(-1)[-rest:] *= _DOWN
        return found

    return rounded


def each(
    function: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype, *rows: Tensor, **_: Any
) -> Tensor:
    """All rows at once, by address; where one raises, all of them in copies, another in its place."""

    def mapped(*some: Tensor) -> Tensor:
        return vmap(lambda *row: function(*row).to(dtype))(_by_address(some[0]), *some[1:])

    count = len(rows[0])
    good, parts = torch.ones(count, dtype=torch.bool), [(0, count)]
    while parts:
        first, last = parts.pop()
        try:
            found = mapped(*(row[first:last] for row in rows))
        except Exception:
            middle = (first + last) // 2
            good[first:last] = last - first > 1
            parts += [(first, middle), (middle, last)] if last - first > 1 else []
        else:
            if last - first == count:
                return found.clone()
    if not bool(good.any()):
        return torch.full((count, *shape), torch.nan, dtype=dtype)
    chosen = torch.where(good, torch.arange(count), good.long().argmax())
    found = mapped(*(row[chosen] for row in rows)).clone()
    found[~good] = torch.nan
    return found


_KERNELS: dict[str, dict[str, Any]] = {
    "linear": {
        "fedsim.problems.network_pass.Matrix.outputs": _outputs,
        "fedsim.problems.network_pass.Matrix.rounded": _unrounded,
    },
    "scores": {"fedsim.problems.exact.scores": scores},
    "elementwise": {
        "fedsim.problems.exact.sigmoid": _last_numbers(torch.sigmoid),
        "fedsim.problems.exact.softplus": _last_numbers(functional.softplus),
    },
    "each": {"silos.vault.network.each": each, "fedsim.problems.program.EXACT": {}},
}


def put_back(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """The old kernel in place of the exact one; of networks, linear layers'."""
    for target, old in _KERNELS[kernel].items():
        monkeypatch.setattr(target, old)
