"""What one layer adds to every record's gradient: its norm, and its clipped sum.

A layer that applies a matrix at T places has, for every record, inputs A (T, p) and output gradients
B (T, q); the gradient of its matrix is B^T A (q, p) and that of its bias the sum of B's rows. Two ways
to its norm, the cheaper is taken (Bu, Mao, Xu, "Scalable and efficient training of large convolutional
neural networks with differential privacy", NeurIPS 2022): the ghost norm |B^T A|^2 = sum (A A^T) * (B B^T)
at a cost of 2 T^2, or the gradient itself at p q. With T = 1 the norm is |A| |B|.

A gradient difference B0^T A0 - B1^T A1 is the same thing with the places of both points side by side:
B0^T (A0 - A1) + (B0 - B1)^T A1, written so that nothing cancels when the points are close.

Everything here is float64, whatever type the forward pass has. A norm that comes out too small would
break the clip, so each term states by how much rounding may have shortened it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fedsim.problems.network_layers import Layer

_EPS = torch.finfo(torch.float64).eps
_LARGEST = 1e60
"""A record with a captured vector longer than this counts as the zero vector: squares then neither
overflow nor, where they matter beside the smallest clip, underflow."""


Pair = tuple[int, int]


@dataclass(frozen=True)
class Capture:
    """One layer at one point: its inputs and output gradients, records first."""

    inputs: Tensor
    slopes: Tensor


class Term(ABC):
    """One layer's part of the gradients of a batch of records."""

    square: Tensor  # squared norm of every record's part, (records,); not finite where it cannot be computed
    slack: Tensor  # by how much rounding may have shortened the norm's root, (records,)

    @abstractmethod
    def clear(self, bad: Tensor) -> None:
        """Set the records of the mask `bad` to zero: a weight of 0 does not remove what is not finite."""

    @abstractmethod
    def sums(self, weight: Tensor) -> dict[str, Tensor]:
        """Sum over rows of weight times the part, for weights (silos, rows); {parameter: (silos, size)}."""


class Whole(Term):
    """Gradients held one by one: {parameter: (records, size)}."""

    def __init__(self, gradients: dict[str, Tensor], slack: Tensor | None = None) -> None:
        self._gradients = gradients
        norms = [torch.linalg.vector_norm(value, dim=1) for value in gradients.values()]
        self.square = sum((norm.square() for norm in norms), start=torch.zeros_like(norms[0]))
        self.slack = torch.zeros_like(self.square) if slack is None else slack
        self.square = torch.where(self.square <= _LARGEST**4, self.square, torch.nan)

    def clear(self, bad: Tensor) -> None:
        """Zero rows."""
        for value in self._gradients.values():
            value[bad] = 0

    def sums(self, weight: Tensor) -> dict[str, Tensor]:
        """One row of weights a silo times its gradients."""
        silos, rows = weight.shape
        return {
            name: torch.bmm(weight.unsqueeze(1), value.reshape(silos, rows, -1)).squeeze(1)
            for name, value in self._gradients.items()
        }


class Ghost(Term):
    """Gradients B^T A of a matrix, never formed; A (records, T, p), B (records, T, q)."""

    def __init__(self, a: Tensor, b: Tensor, bias: Tensor | None) -> None:
        self._a, self._b, self._bias = a, b, bias
        size_a, size_b = _square(a), _square(b)
        bound = size_a * size_b
        self.square = bound
        if a.shape[1] > 1:
            gram = (a @ a.transpose(1, 2)).mul_(b @ b.transpose(1, 2)).sum((1, 2)).clamp_min_(0)
            rounding = 4 * _EPS * (a.shape[2] + b.shape[2] + a.shape[1] ** 2)
            self.square = gram + rounding * bound
        if bias is not None:  # of one place it is b
            self.square = self.square + (size_b if a.shape[1] == 1 else _square(bias))
        self.slack = torch.zeros_like(bound)
        self.square = torch.where((size_a <= _LARGEST**2) & (size_b <= _LARGEST**2), self.square, torch.nan)

    def clear(self, bad: Tensor) -> None:
        """Zero rows, in copies: a captured input may be the records themselves."""
        rows = bad[:, None, None]
        self._a, self._b = self._a.masked_fill(rows, 0), self._b.masked_fill(rows, 0)
        if self._bias is not None:
            self._bias = self._bias.masked_fill(bad[:, None], 0)

    def sums(self, weight: Tensor) -> dict[str, Tensor]:
        """(weight B)^T A over all rows and places of a silo at once."""
        silos, rows = weight.shape
        a = self._a.reshape(silos, rows * self._a.shape[1], -1)
        b = (self._b * weight.view(-1, 1, 1)).reshape(silos, rows * self._b.shape[1], -1)
        result = {"weight": torch.bmm(b.transpose(1, 2), a).flatten(1)}
        if self._bias is not None:
            bias = self._bias.view(silos, rows, -1)
            result["bias"] = torch.bmm(weight.unsqueeze(1), bias).squeeze(1)
        return result


def _square(x: Tensor) -> Tensor:
    """Squared L2 norm of every record, (records,)."""
    if x.dim() == 2 or x.shape[1] == 1:
        return x.square().flatten(1).sum(1)  # quicker than norms of short rows
    norm: Tensor = torch.linalg.vector_norm(x, dim=(1, 2))  # quicker than a copy of windows
    return norm.square()


class Matrix:
    """How to turn captures of an `nn.Linear` or `nn.Conv2d` into a term."""

    def __init__(self, layer: Layer, kernel: Sequence[int]) -> None:
        """`kernel`: the sides of a convolution's kernel."""
        self._layer, self._kernel = layer, kernel

    def term(self, captures: Sequence[Capture]) -> Term:
        """The gradient at the first capture, minus that at the second if there are two; the cheaper way."""
        pairs = [(self._inputs(c.inputs), self._slopes(c.slopes)) for c in captures]
        a, b = pairs[0]
        places = len(pairs) * a.shape[1]
        if a.shape[1] > 1 and 2 * places**2 > a.shape[2] * b.shape[2]:
            return self._direct(pairs)
        bias = b if len(pairs) == 1 else b - pairs[1][1]
        if len(pairs) == 2:
            (a0, b0), (a1, _) = pairs
            a, b = torch.cat([a0 - a1, a1], 1), torch.cat([b0, bias], 1)
        return Ghost(a, b, self._bias(bias))

    def _direct(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Term:
        (a, b), *others = pairs
        weight, bias = b.transpose(1, 2) @ a, b.sum(1)
        size = (_square(a) * _square(b)).sqrt()
        for a1, b1 in others:
            weight -= b1.transpose(1, 2) @ a1
            bias = bias - b1.sum(1)
            size = size + (_square(a1) * _square(b1)).sqrt()
        gradients = {"weight": weight.flatten(1)}
        if "bias" in self._layer.names:
            gradients["bias"] = bias
        return Whole(gradients, 4 * _EPS * (a.shape[1] + 1) * size)

    def _bias(self, b: Tensor) -> Tensor | None:
        if "bias" not in self._layer.names:
            return None
        return b.squeeze(1) if b.shape[1] == 1 else b.sum(1)

    def _inputs(self, x: Tensor) -> Tensor:
        """(records, T, p)."""
        x = x.double()
        if self._layer.kind is nn.Linear:
            return x.reshape(len(x), -1, x.shape[-1])
        return _patches(x, self._kernel, **self._layer.numbers).transpose(1, 2)

    def _slopes(self, slopes: Tensor) -> Tensor:
        """(records, T, q)."""
        slopes = slopes.double()
        if self._layer.kind is nn.Linear:
            return slopes.reshape(len(slopes), -1, slopes.shape[-1])
        return slopes.flatten(2).transpose(1, 2)

    def elements(self, capture: Capture) -> int:
        """Inputs and slopes, and Gram matrices or the gradient."""
        a, b = self._inputs(capture.inputs), self._slopes(capture.slopes)
        places, p, q = a.shape[1], a.shape[2], b.shape[2]
        return places * (p + q) + (0 if places == 1 else min(2 * places**2, p * q))


def _patches(x: Tensor, kernel: Sequence[int], stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """What the kernel sees at every place, (records, p, T): `unfold`, three to eight times faster."""
    x = pad(x, [size for size in reversed(padding) for _ in range(2)]).contiguous()
    (records, channels, *sides), (*outer, down, right) = x.shape, x.stride()
    frames = zip(sides, kernel, dilation, stride, strict=True)
    places = [(side - gap * (kernel - 1) - 1) // step + 1 for side, kernel, gap, step in frames]
    inner = [gap * by for gap, by in zip(dilation, (down, right), strict=True)]
    across = [step * by for step, by in zip(stride, (down, right), strict=True)]
    windows = x.as_strided((records, channels, *kernel, *places), (*outer, *inner, *across))
    return windows.reshape(records, channels * prod(kernel), prod(places))
