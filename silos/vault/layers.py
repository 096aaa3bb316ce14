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
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedsim.problems.exact import product, sums, total
from fedsim.problems.network_pass import Capture, Matrix

_EPS = torch.finfo(torch.float64).eps
_LARGEST = 1e60
"""A record with a captured vector longer than this counts as the zero vector: squares then neither
overflow nor, where they matter beside the smallest clip, underflow."""

_CANCELLED = 1e-4
"""A term counts as at least a hundredth of the sum of its places' norms. Places are added one by one, so that
a record whose places cancel would else be added in parts far longer than its clip, and rounding is of parts:
n records, P of T places at a time, are summed to within n P T u / sqrt(_CANCELLED) of the clip."""

PLACES = 1_800  # P T at most, and twice that at two points: docs/grid-noise.md has the sum
_HELD = 10
"""How many multiplications take as long as one number of a gradient that is held, measured on layers of 2 to
576 places, where it errs by at most a third of the time."""


class Term(ABC):
    """One layer's part of the gradients of a batch of records."""

    square: Tensor  # squared norm of every record's part, (records,); not finite where it cannot be computed

    @abstractmethod
    def clear(self, bad: Tensor) -> None:
        """Set the records of the mask `bad` to zero: a weight of 0 does not remove what is not finite."""

    @abstractmethod
    def add(self, weight: Tensor, into: Mapping[str, Tensor], prefix: str, first: bool = False) -> None:
        """Add the sum over rows of weight times the part, for weights (silos, rows), in place to {prefix +
        parameter: (silos, size)}, or overwrite it if it is the first: vectors of d numbers are not made for
        every chunk.
        """


class Whole(Term):
    """Gradients held one by one: {parameter: (records, size)}."""

    def __init__(self, gradients: dict[str, Tensor]) -> None:
        self._gradients = {name: value.double() for name, value in gradients.items()}
        self.square = total(torch.stack([sums(own, own) for own in self._gradients.values()], -1))
        self.square = torch.where(self.square <= _LARGEST**4, self.square, torch.nan)

    def clear(self, bad: Tensor) -> None:
        """Zero rows."""
        for value in self._gradients.values():
            value[bad] = 0

    def add(self, weight: Tensor, into: Mapping[str, Tensor], prefix: str, first: bool = False) -> None:
        """One row of weights a silo times its gradients."""
        for name, value in self._gradients.items():
            own = into[prefix + name].unsqueeze(1)
            _add(own, weight.unsqueeze(1), value.reshape(*weight.shape, -1), first)


class Ghost(Term):
    """Sums over pairs of gradients B^T A of a matrix, never formed; A (records, T, p), B (records, T, q)."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], bias: Tensor | None) -> None:
        self._pairs, self._bias = list(pairs), bias
        self._placed = len(pairs) > 1 or pairs[0][0].shape[1] > 1  # a sum over places
        sizes = [(_square(a), _square(b)) for a, b in pairs]
        self.square = sizes[0][0] * sizes[0][1]
        if self._placed:
            a, b = (torch.cat(own, 1) for own in zip(*pairs, strict=True))
            grams = (product(own, own.transpose(1, 2)).flatten(1) for own in (a, b))
            norms = [(size_a * size_b).sqrt() for size_a, size_b in sizes]
            parts = total(torch.stack(norms, -1)).square()  # at least the sum of the norms of places
            rounding = 4 * _EPS * (a.shape[2] + b.shape[2] + a.shape[1] ** 2)
            self.square = torch.maximum(sums(*grams) + rounding * parts, _CANCELLED * parts)
        if bias is not None:  # of one place it is b
            self.square = self.square + (_square(bias) if self._placed else sizes[0][1])
        held = torch.stack([size for pair in sizes for size in pair]).amax(0) <= _LARGEST**2
        self.square = torch.where(held, self.square, torch.nan)

    def clear(self, bad: Tensor) -> None:
        """Zero rows, in copies: a captured input may be the records themselves."""
        rows = bad[:, None, None]
        self._pairs = [(a.masked_fill(rows, 0), b.masked_fill(rows, 0)) for a, b in self._pairs]
        if self._bias is not None:
            self._bias = self._bias.masked_fill(bad[:, None], 0)

    def add(self, weight: Tensor, into: Mapping[str, Tensor], prefix: str, first: bool = False) -> None:
        """(weight B)^T A over all rows and places of a silo at once."""
        silos, rows = weight.shape
        for i, (a, b) in enumerate(self._pairs):
            left = (b * weight.view(-1, 1, 1)).reshape(silos, -1, b.shape[2]).transpose(1, 2)
            right = a.reshape(silos, -1, a.shape[2])
            total = into[prefix + "weight"].view(silos, b.shape[2], a.shape[2])
            _add(total, left, right, first and i == 0, apart=self._placed)
        if self._bias is not None:
            bias = self._bias.view(silos, rows, -1)
            _add(into[prefix + "bias"].unsqueeze(1), weight.unsqueeze(1), bias, first)


def _add(total: Tensor, left: Tensor, right: Tensor, first: bool, apart: bool = False) -> None:
    """total += left @ right, (silos, .., ..) each, or = if it is the first; `apart`: rounded as a sum of its
    own before it is added.
    """
    if apart and not first:
        total += product(left, right)
    else:
        total.baddbmm_(left, right, beta=0 if first else 1)


def _square(x: Tensor) -> Tensor:
    """Squared L2 norm of every record, (records,)."""
    flat = x.flatten(1)
    return sums(flat, flat)


def term_of(matrix: Matrix, captures: Sequence[Capture]) -> Term:
    """The gradient at the first capture, minus that at the second if there are two; the quicker way."""
    pairs = [(_by_place(c.inputs, matrix), _by_place(c.slopes, matrix)) for c in captures]
    direct = _held(*pairs[0], len(pairs))
    if not direct or len(pairs) > 1:  # what two points have in common leaves few of float32's digits
        pairs = [(a.double(), b.double()) for a, b in pairs]
    if direct:
        return _direct(pairs, matrix.bias is not None)
    bias = pairs[0][1]
    if len(pairs) == 2:
        (a0, b0), (a1, b1) = pairs
        bias = matrix.rounded(b0 - b1)
        pairs = [(matrix.rounded(a0 - a1), b0), (a1, bias)]
    return Ghost(pairs, None if matrix.bias is None else bias.sum(1))


def _held(a: Tensor, b: Tensor, points: int) -> bool:
    """Whether every record's gradient is made."""
    places, p, q = points * a.shape[1], a.shape[2], b.shape[2]
    return a.shape[1] > 1 and places**2 * (p + q) > _HELD * p * q


def _direct(pairs: Sequence[tuple[Tensor, Tensor]], bias: bool) -> Term:
    (a, b), *others = pairs
    weight, slopes = product(b.transpose(1, 2), a), b.sum(1)
    for a1, b1 in others:
        weight -= product(b1.transpose(1, 2), a1)
        slopes = slopes - b1.sum(1)
    return Whole({"weight": weight.flatten(1)} | ({"bias": slopes} if bias else {}))


def _by_place(captured: Tensor, matrix: Matrix) -> Tensor:
    """(records, T, p) or (records, T, q)."""
    if matrix.layer.kind is nn.Linear:
        return captured.reshape(len(captured), -1, captured.shape[-1])
    return captured.flatten(2).transpose(1, 2)


def elements(matrix: Matrix, capture: Capture) -> tuple[int, int]:
    """Inputs and slopes, and Gram matrices or the gradient; and the places that a sum adds of a record."""
    a, b = _by_place(capture.inputs, matrix), _by_place(capture.slopes, matrix)
    places, p, q = a.shape[1], a.shape[2], b.shape[2]
    held = _held(a, b, 1)
    numbers = places * (p + q) + (0 if places == 1 else p * q if held else 2 * places**2)
    return numbers, 1 if held else places
