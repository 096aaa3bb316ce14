"""The passes of a chain of layers over records: forward, backward, and what its matrices see on the way.

In float64 on a CPU every number of a record is made as `fedsim.problems.exact` says, so that it does not
depend on the records beside it: what a matrix is applied to, the matrix and the slopes of its outputs are
`rounded`, to within sqrt(m) 2^-26 of their norms, and their products are exact. Elsewhere nothing is rounded.
No gradient is recorded: parameters need none here, and the backward pass ends at the first matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from fedsim.problems import exact
from fedsim.problems.network import ROWS, NeuralNetwork
from fedsim.problems.network_layers import Layer, Layers, SquaredReLU, SquarePlusCube

Pair = tuple[int, int]
Backward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Capture:
    """One layer at one point: what its matrix is applied to, and its output gradients, both of them records
    first: (records, p, ..) and (records, q, ..) with places last for a convolution, (records, .., p) and
    (records, .., q) for a linear layer.
    """

    inputs: Tensor
    slopes: Tensor


class Matrix:
    """The matrix of an `nn.Linear` or `nn.Conv2d` at a point."""

    def __init__(self, layer: Layer, weight: Tensor, bias: Tensor | None = None) -> None:
        self.layer, self.bias, self._exact = layer, bias, exact.holds(weight)
        self._weight = exact.rounded_weight(weight) if self._exact else weight
        self._linear = layer.kind is nn.Linear

    def rounded(self, x: Tensor, own: bool = False) -> Tensor:
        """Inputs or slopes of records as they are multiplied; `own`: x may be overwritten."""
        return exact.rounded(x, own=own) if self._exact else x

    def inputs(self, x: Tensor) -> Tensor:
        """What the matrix is applied to, of the layer's rounded input."""
        return x if self._linear else _patches(x, self._weight.shape[2:], **self.layer.numbers)

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The layer's output, of its rounded input and what `inputs` made of it."""
        if self._linear:
            found = inputs @ self._weight.T
        elif x.device.type == "cpu":
            found = exact.product(self._weight.flatten(1), inputs.flatten(2))
            found = found.view(len(found), -1, *inputs.shape[2:])
        else:
            found = conv2d(x, self._weight, **self.layer.numbers)
        if self.bias is None:
            return found
        return found.add_(self.bias if self._linear else self.bias[:, None, None])

    def slopes(self, slopes: Tensor, shape: Sequence[int]) -> Tensor:
        """The slopes of its input, of this shape, by the rounded slopes of its output."""
        if self._linear:
            return slopes @ self._weight
        numbers = (self.layer.numbers[name] for name in ("stride", "padding", "dilation"))
        x = slopes.new_empty(shape)
        mask = [True, False, False]
        found: Tensor = torch.ops.aten.convolution_backward(
            slopes, x, self._weight, None, *numbers, False, [0, 0], 1, mask
        )[0]
        return found


_Back = Backward | tuple[Matrix, Sequence[int]]  # with the shape of its input


class Chain:
    """A chain of layers at a point."""

    def __init__(self, problem: NeuralNetwork, point: Tensor) -> None:
        """The problem's form at the point (d,) is one of layers."""
        form, parameters = problem.form(point.dtype), problem.parameters(point)
        assert isinstance(form, Layers)
        self._head, self._parts = problem.head, [_part(layer, parameters) for layer in form.chain]

    @property
    def matrices(self) -> list[Matrix]:
        """Those of layers with parameters, in order."""
        return [part for part in self._parts if isinstance(part, Matrix)]

    def scores(self, features: Tensor) -> Tensor:
        """(records, features) to (records, outputs)."""
        return self._forward(features)[0]

    def captured(self, features: Tensor, target: Tensor) -> list[Capture]:
        """What each matrix saw, and the slopes of its outputs by the losses at `target` (records,)."""
        scores, inputs, backward = self._forward(features)
        flat = scores.squeeze(1) if scores.shape[1] == 1 else scores
        slopes = self._head.coefficient(flat, target, torch.ones_like(target)).view_as(scores)
        found: list[Capture] = []
        for step in reversed(backward):
            if not isinstance(step, tuple):
                slopes = step(slopes)
                continue
            matrix, shape = step
            slopes = matrix.rounded(slopes, own=True)
            found.append(Capture(inputs.pop(), slopes))
            if inputs:
                slopes = matrix.slopes(slopes, shape)
        return found[::-1]

    def _forward(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[_Back]]:
        """Scores, what every matrix saw, and the way back; before the first matrix there is none."""
        inputs: list[Tensor] = []
        back: list[_Back] = []
        for part in self._parts:
            if isinstance(part, Matrix):
                x = part.rounded(x, own=bool(inputs))
                inputs.append(part.inputs(x))
                back.append((part, x.shape))
                x = part.outputs(x, inputs[-1])
            elif inputs:
                x, backward = part(x)
                back.append(backward)
            else:
                x = part(x)[0]
        return x, inputs, back


def scores(problem: NeuralNetwork, features: Tensor, w: Tensor) -> Tensor:
    """As the problem's `scores`, each made of its record alone to the last bit, and rounded more coarsely."""
    if w.dim() > 1:
        return torch.stack([scores(problem, *own) for own in zip(features, w, strict=True)])
    form = problem.form(w.dtype)
    if isinstance(form, Layers):
        score = Chain(problem, w).scores
    else:
        score = partial(form.scores, problem.parameters(w), exact=True)
    with torch.no_grad():
        found = torch.cat([score(x) for x in torch.split(features.flatten(0, -2), ROWS)])
    shape = features.shape[:-1]
    return found.view(*shape, -1) if problem.num_outputs > 1 else found.view(shape)


_Function = Callable[[Tensor], tuple[Tensor, Backward]]
"""A layer without parameters: the output of an input, which is overwritten by its rounding, and how slopes go
back, which are overwritten."""


def _part(layer: Layer, parameters: Mapping[str, Tensor]) -> Matrix | _Function:
    if layer.names:
        return Matrix(layer, **{name: parameters[layer.prefix + name] for name in layer.names})
    return _BY_HAND.get(layer.kind) or (lambda x: _recorded(layer, x))


def _recorded(layer: Layer, x: Tensor) -> tuple[Tensor, Backward]:
    """By torch's own gradient: layers that move, compare and add numbers of a record."""
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        found = layer(given, {})
    return found.detach(), lambda slopes: torch.autograd.grad(found, given, slopes)[0]


def _relu(x: Tensor) -> tuple[Tensor, Backward]:
    found = x.relu()
    return found, lambda s: torch.ops.aten.threshold_backward.grad_input(s, found, 0, grad_input=s)


def _squared_relu(x: Tensor) -> tuple[Tensor, Backward]:
    found = x.relu()
    return found.square(), lambda slopes: (2 * found).mul_(slopes)


def _tanh(x: Tensor) -> tuple[Tensor, Backward]:
    found = exact.tanh(x)
    return found, lambda slopes: (1 - found.square()).mul_(slopes)


def _sigmoid(x: Tensor) -> tuple[Tensor, Backward]:
    found = exact.sigmoid(x)
    return found, lambda slopes: (1 - found).mul_(found).mul_(slopes)


_BY_HAND: dict[type[nn.Module], _Function] = {
    nn.ReLU: _relu,
    SquaredReLU: _squared_relu,
    SquarePlusCube: lambda x: ((1 + x).mul_(x).mul_(x), lambda s: (3 * x).add_(2).mul_(x).mul_(s)),
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
}


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
