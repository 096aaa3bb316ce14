"""How much work an operation is: about how many multiplications, and at most how long with its gradient.

Nanoseconds are an upper envelope of what every operation of the table took for tensors of 60 to 10^6 numbers,
for one record and several, on one core of an Intel Xeon: dense products take a tenth of it, kernels that loop
over groups, images or single numbers nearly all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from fedsim.problems.operations import Values

_SLOW = ("linalg_vector_norm", "sort", "topk", "argmax", "argmin", "max", "min")
_VIEWS = ("permute", "reshape", "expand", "detach")


def work(operation: str, a: Sequence[Any], value: Values) -> tuple[int, int]:
    """(multiplications and additions, at least the numbers that it touches; nanoseconds) of one record."""
    touched = sum(each.numel() for each in (*tensors(value), *a) if isinstance(each, Tensor))
    name, given = operation.split(".")[0], tensors(value)[0].numel()
    if name in ("mm", "bmm", "addmm"):
        given *= a[-1].shape[-2]  # the last matrix has a row for each term of a sum
        return given + touched, 2 * given + 16 * touched
    if name == "convolution":
        image, kernels, groups = a[0], a[1], a[8]
        given = max(given, image.numel()) * kernels[0].numel()
        one = 48 if kernels.dim() == 5 else 12
        return given + touched, one * given + 20 * touched + groups * (15_000 + 1_500 * len(image))
    if "pool" in name and "adaptive" not in name:
        given *= prod(a[1])  # the window
    return given + touched, (100 if name in _SLOW else 4 if name in _VIEWS else 20) * (given + touched)


def tensors(value: Values) -> tuple[Tensor, ...]:
    """The tensors of a result."""
    return (value,) if isinstance(value, Tensor) else value
