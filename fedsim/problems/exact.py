"""Numbers of one record that are the same to the last bit whatever is computed beside them.

BLAS, and vectorised loops, round a row by its place, its address and how many rows there are. A gradient or a
threshold may jump where a number is rounded the other way, so that another record's term would move by all of
its clip. So in float64 on a CPU a number that belongs to one record is made, from its data and public
numbers, by nothing but

(1) one IEEE operation at a time on each number (sum, product, quotient, square root, comparison, rounding);
(2) sums of products whose result is exact (`rounded`): both factors are whole numbers of steps, each step a
    power of two that depends on the record alone or on public numbers alone;
(3) NumPy's exp, log, log1p and tanh, and `vecdot`, the sum of products of one row by itself: they take the
    last numbers of a row by the same instructions as the others (`silos.front.self_test` tries that).

Proof for (2). Let a and b be vectors of whole numbers of Euclidean norm at most 2^26.5. By Cauchy and Schwarz
every sum of some of their products, so every partial sum in any order, is a whole number of at most 2^53, and
so is each product. A float64 holds those, hence no operation on the way rounds, fused or not, and the
result does not depend on order, place, address or the number of threads. Steps are at least 2^-505 and
norms at most 2^480: nothing under- or overflows. By induction over the operations the record's numbers are
functions of its own data and public numbers. What is left is the last sum, over records, and the scaling of a
term to its clip, whose rounding is relative (`silos.vault.sums`, docs/grid-noise.md).

float32 and other devices compute as torch does, and are not exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

_EXPONENT = 0x7FF0000000000000  # of a float64
_LEAST, _MOST = 2.0**-480, 2.0**480
_SHIFT = 1.5 * 2.0**52 * 2.0**-25  # of a norm's power of two: the sum's last bit is then one step


def suits(x: Tensor) -> bool:
    """Whether exact numbers are made of such: float64 on a CPU."""
    return x.dtype == torch.float64 and x.device.type == "cpu"


def holds(x: Tensor) -> bool:
    """Whether numbers of x are made exactly here: neither a record's under `vmap` nor with a gradient."""
    return (
        suits(x)
        and type(x) is torch.Tensor
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def by_numpy(function: Callable[..., Any], *given: Tensor) -> Tensor:
    """A function of NumPy's of contiguous tensors on the CPU; what is not finite is looked at later."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(function(*(each.detach().contiguous().numpy() for each in given))))


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, (.., a, b) and (.., b, c), each matrix by itself, exact only if its factors are; on a CPU
    by NumPy's BLAS: torch's takes up to seven times as long for batches of few columns.
    """
    if left.device.type != "cpu":
        return left @ right
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.matmul(left.detach().numpy(), right.detach().numpy()))


def sums(left: Tensor, right: Tensor) -> Tensor:
    """Sums of products over the last axis, of tensors that broadcast: way (3)."""
    return by_numpy(np.vecdot, left, right) if holds(left) else (left * right).sum(-1)


def total(x: Tensor) -> Tensor:
    """Sum over the last axis, of few numbers, one after the other."""
    return sum(x.unbind(-1)[1:], start=x[..., 0])


def scores(features: Tensor, w: Tensor, outputs: int) -> Tensor:
    """x W of every record, (..) or (.., outputs), at w (d,) or, for silos first, (silos, d)."""
    columns = w.reshape(*w.shape[:-1], -1, outputs)
    if not holds(features):
        found = product(features, columns)
        return found.squeeze(-1) if outputs == 1 else found
    rows = columns.transpose(-1, -2).unsqueeze(-3) if w.dim() > 1 else columns.T
    found = sums(features.unsqueeze(-2), rows)
    return found.squeeze(-1) if outputs == 1 else found


def rounded(x: Tensor, norm: Tensor | None = None, own: bool = False) -> Tensor:
    """x in whole numbers of steps, at most 2^26 of them in norm; NaN where a norm is beyond 2^480, or none.

    `own`: x may be overwritten. `norm`: at least that of the numbers that meet in one sum, in the axes of x;
    by default of all numbers of a record, x[i]. Steps are 2^-25 of a power of two between half the norm and
    the norm, so that a vector of m numbers rounds to within sqrt(m) 2^-26 of its norm.
    """
    if norm is None:
        flat = x.reshape(len(x), -1)
        norm = sums(flat, flat).sqrt_().view(-1, *[1] * (x.dim() - 1))
    power = (norm.clamp_min(_LEAST).view(torch.int64) & _EXPONENT).view(torch.float64)
    shift = torch.where(norm <= _MOST, power * _SHIFT, torch.nan)
    return (x.add_(shift) if own else x + shift).sub_(shift)


def rounded_weight(weight: Tensor) -> Tensor:
    """A matrix (outputs, inputs), or kernels (outputs, inputs, ..), for sums over all but one of the two."""
    rows = weight.flatten(1)
    across = by_numpy(lambda x: np.einsum("qp,qp->p", x, x), rows).view(weight.shape[1], -1)
    norm = torch.maximum(sums(rows, rows).amax(), total(across).amax()).sqrt()
    return rounded(weight, norm.view([1] * weight.dim()))


def _elementwise(exact: np.ufunc, usual: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return by_numpy(exact, x) if holds(x) else usual(x)


exp = partial(_elementwise, np.exp, lambda x: x.exp())
log = partial(_elementwise, np.log, lambda x: x.log())
log1p = partial(_elementwise, np.log1p, lambda x: x.log1p())
tanh = partial(_elementwise, np.tanh, lambda x: x.tanh())


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return exp(-x).add_(1).reciprocal_() if holds(x) else x.sigmoid()


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x)."""
    return log1p(exp(-x.abs())) + x.clamp_min(0) if holds(x) else torch.nn.functional.softplus(x)


def softmax(x: Tensor) -> Tensor:
    """Over the last axis; over an inner one, of records side by side: ten times faster for few outputs."""
    columns = x.movedim(-1, 0)
    if not holds(x):
        return columns.softmax(0).movedim(0, -1)
    columns = columns.contiguous()
    found = exp(columns.sub(columns.amax(0))).movedim(0, -1)
    return found.div_(total(found).unsqueeze(-1))


def logsumexp(x: Tensor) -> Tensor:
    """Over the last axis."""
    if not holds(x):
        return x.logsumexp(-1)
    most = x.amax(-1, keepdim=True)
    most = most.masked_fill(most.isinf(), 0.0)
    return log(total(exp(x - most))) + most.squeeze(-1)
