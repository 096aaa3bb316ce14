"""Products of a program of one record whose sums are exact, with gradients (`fedsim.problems.exact`).

Under `vmap` a factor is a record's, rounded by its own numbers, or a parameter, rounded by public ones. Where
numbers are not float64 on a CPU they are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.problems.exact import rounded, suits


def _rounded(x: Tensor, axes: Sequence[int], count: int) -> Tensor:
    """`rounded`, those along the axes by one step, for sums of at most `count` products. The largest number
    is the same in any order, where a norm is not.
    """
    return rounded(x, x.abs().amax(tuple(axes), keepdim=True) * count**0.5) if suits(x) else x


def _product(left: Tensor, right: Tensor) -> Tensor:
    count = left.shape[-1]
    return _rounded(left, [-1], count) @ _rounded(right, [-2], count)


class _Mm(torch.autograd.Function):
    """left @ right of matrices; its gradients round both of their factors anew."""

    forward = staticmethod(_product)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        left, right = ctx.saved_tensors
        return _product(slope, right.transpose(-1, -2)), _product(left.transpose(-1, -2), slope)

    @staticmethod
    def vmap(info: Any, axes: Any, left: Tensor, right: Tensor) -> Any:
        """Records first; a factor that all have, and those of each, multiply as torch's do."""
        pairs = zip((left, right), axes, strict=True)
        return _Mm.apply(*(x if axis is None else x.movedim(axis, 0) for x, axis in pairs)), 0  # type: ignore[no-untyped-call]


def _mm(left: Tensor, right: Tensor) -> Tensor:
    return _Mm.apply(left, right)  # type: ignore[no-untyped-call, no-any-return]


def _addmm(bias: Tensor, left: Tensor, right: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    found = _mm(left, right)
    return (bias if beta == 1 else bias * beta) + (found if alpha == 1 else found * alpha)


def _record(x: Tensor) -> Tensor:
    """Images (images, channels, ..) of one record."""
    return _rounded(x, range(x.dim()), x.numel())


def _kernels(x: Tensor) -> Tensor:
    """A sum meets the kernels of one output or of one input."""
    return _rounded(x, range(x.dim()), x.numel() // min(x.shape[:2]))


class _Convolution(torch.autograd.Function):
    """A convolution of one record's images."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, numbers: Any) -> Tensor:
        found: Tensor = torch.ops.aten.convolution.default(_record(x), _kernels(weight), None, *numbers)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, ctx.numbers = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        given = _record(slope), _record(x), _kernels(weight)
        found = torch.ops.aten.convolution_backward.default(*given, None, *ctx.numbers, [True, True, False])
        return found[0], found[1], None


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Tensor:
    found: Tensor = _Convolution.apply(x, weight, numbers)  # type: ignore[no-untyped-call]
    return found if bias is None else found + bias.view(-1, *[1] * (x.dim() - 2))


EXACT: Mapping[str, Callable[..., Tensor]] = {
    "mm.default": _mm,
    "bmm.default": _mm,
    "addmm.default": _addmm,
    "convolution.default": _convolution,
}
"""What stands for an operation of the table (`fedsim.problems.operations`)."""
