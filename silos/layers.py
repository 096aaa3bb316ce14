"""What one layer adds to every record's gradient: its norm, and its clipped sum.

A layer that applies a matrix at T places has, for every record, inputs A (T, p) and output gradients
B (T, q); the gradient of its matrix is B^T A (q, p) and that of its bias the sum of B's rows. Two ways
to its norm, the quicker is taken (Bu, Mao, Xu, "Scalable and efficient training of large convolutional
neural networks with differential privacy", NeurIPS 2022): the ghost norm |B^T A|^2 = sum (A A^T) * (B B^T)
multiplies T^2 (p + q) times, the gradient itself writes and reads p q numbers (`_HELD`). With T = 1 the norm
is |A| |B|.

A gradient difference B0^T A0 - B1^T A1 is the same thing with the places of both points side by side:
B0^T (A0 - A1) + (B0 - B1)^T A1, written so that nothing cancels when the points are close.

Norms and sums are float64, whatever type the passes have. A norm that comes out too small would break the
clip: a ghost norm is taken in float64, and what rounding may have taken off is added. A gradient itself may
be float32: its norm and the sum are of the numbers that it has, however they were rounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from fedsim.problems.network_layers import Layer
from silos.sums import product

_EPS = torch.finfo(torch.float64).eps
_LARGEST = 1e60
"""A record with a captured vector longer than this counts as the zero vector: squares then neither
overflow nor, where they matter beside the smallest clip, underflow."""


Pair = tuple[int, int]


_HELD = 10
"""How many multiplications take as long as one number of a gradient that is held, measured on layers of 2 to
576 places, where it errs by at most a third of the time."""


@dataclass(frozen=True)
class Capture:
    """One layer at one point: what its matrix is applied to, and its output gradients, both of them records
    first: (records, p, ..) and (records, q, ..) with places last for a convolution, (records, .., p) and
    (records, .., q) for a linear layer.
    """

    inputs: Tensor
    slopes: Tensor


class Term(ABC):
    """One layer's part of the gradients of a batch of records."""

    square: Tensor  # squared norm of every record's part, (records,); not finite where it cannot be computed

    @abstractmethod
    def clear(self, bad: Tensor) -> None:
        """Set the records of the mask `bad` to zero: a weight of 0 does not remove what is not finite."""

    @abstractmethod
    def sums(self, weight: Tensor) -> dict[str, Tensor]:
        """Sum over rows of weight times the part, for weights (silos, rows); {parameter: (silos, size)}."""


class Whole(Term):
    """Gradients held one by one: {parameter: (records, size)}."""

    def __init__(self, gradients: dict[str, Tensor]) -> None:
        self._gradients = {name: value.double() for name, value in gradients.items()}
        norms = [torch.linalg.vector_norm(value, dim=1) for value in self._gradients.values()]
        self.square = sum((norm.square() for norm in norms), start=torch.zeros_like(norms[0]))
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
            grams = product(a, a.transpose(1, 2)), product(b, b.transpose(1, 2))
            gram = (grams[0] * grams[1]).sum((1, 2)).clamp_min_(0)
            rounding = 4 * _EPS * (a.shape[2] + b.shape[2] + a.shape[1] ** 2)
            self.square = gram + rounding * bound
        if bias is not None:  # of one place it is b
            self.square = self.square + (size_b if a.shape[1] == 1 else _square(bias))
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
    """The matrix of an `nn.Linear` or `nn.Conv2d`, and how to turn captures into a term."""

    def __init__(self, layer: Layer, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` and `bias`: of the layer, at the point."""
        self.layer, self._weight, self._bias = layer, weight, bias

    def inputs(self, x: Tensor) -> Tensor:
        """What the matrix is applied to, of the layer's input."""
        if self.layer.kind is nn.Linear:
            return x
        return _patches(x, self._weight.shape[2:], **self.layer.numbers)

    def outputs(self, inputs: Tensor) -> Tensor:
        """The layer's output, without a gradient."""
        if self.layer.kind is nn.Linear:
            return linear(inputs, self._weight, self._bias)
        found = product(self._weight.flatten(1), inputs.flatten(2))
        found = found if self._bias is None else found.add_(self._bias[:, None])
        return found.view(len(found), -1, *inputs.shape[2:])

    def term(self, captures: Sequence[Capture]) -> Term:
        """The gradient at the first capture, minus that at the second if there are two; the quicker way."""
        pairs = [(self._by_place(c.inputs), self._by_place(c.slopes)) for c in captures]
        direct = self._held(*pairs[0], len(pairs))
        if not direct or len(pairs) > 1:  # what two points have in common leaves few of float32's digits
            pairs = [(a.double(), b.double()) for a, b in pairs]
        if direct:
            return self._direct(pairs)
        a, b = pairs[0]
        bias = b if len(pairs) == 1 else b - pairs[1][1]
        if len(pairs) == 2:
            (a0, b0), (a1, _) = pairs
            a, b = torch.cat([a0 - a1, a1], 1), torch.cat([b0, bias], 1)
        return Ghost(a, b, bias.sum(1) if self._bias is not None else None)

    @staticmethod
    def _held(a: Tensor, b: Tensor, points: int) -> bool:
        """Whether every record's gradient is made."""
        places, p, q = points * a.shape[1], a.shape[2], b.shape[2]
        return a.shape[1] > 1 and places**2 * (p + q) > _HELD * p * q

    def _direct(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Term:
        (a, b), *others = pairs
        weight, bias = product(a.transpose(1, 2), b), b.sum(1)
        for a1, b1 in others:
            weight -= product(a1.transpose(1, 2), b1)
            bias = bias - b1.sum(1)
        found = {"weight": weight.transpose(1, 2).flatten(1)}
        return Whole(found | ({"bias": bias} if self._bias is not None else {}))

    def _by_place(self, captured: Tensor) -> Tensor:
        """(records, T, p) or (records, T, q)."""
        if self.layer.kind is nn.Linear:
            return captured.reshape(len(captured), -1, captured.shape[-1])
        return captured.flatten(2).transpose(1, 2)

    def elements(self, capture: Capture) -> int:
        """Inputs and slopes, and Gram matrices or the gradient."""
        a, b = self._by_place(capture.inputs), self._by_place(capture.slopes)
        places, p, q = a.shape[1], a.shape[2], b.shape[2]
        held = p * q if self._held(a, b, 1) else 2 * places**2
        return places * (p + q) + (0 if places == 1 else held)


def _patches(x: Tensor, kernel: Sequence[int], stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """What the kernel sees, (records, p, high, wide): `unfold`, three to eight times faster."""
    x = pad(x, [size for size in reversed(padding) for _ in range(2)]).contiguous()
    (records, channels, *sides), (*outer, down, right) = x.shape, x.stride()
    frames = zip(sides, kernel, dilation, stride, strict=True)
    places = [(side - gap * (kernel - 1) - 1) // step + 1 for side, kernel, gap, step in frames]
    inner = [gap * by for gap, by in zip(dilation, (down, right), strict=True)]
    across = [step * by for step, by in zip(stride, (down, right), strict=True)]
    windows = x.as_strided((records, channels, *kernel, *places), (*outer, *inner, *across))
    return windows.reshape(records, channels * prod(kernel), *places)
