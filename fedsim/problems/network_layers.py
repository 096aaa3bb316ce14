"""Networks whose layers keep the records of a batch apart, by construction.

A plain `nn.Sequential` of the layers below is read for its structure only: what runs are torch's functions
with the numbers read, and neither an object nor a hook of the module's author.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class SquaredReLU(nn.Module):
    """max(s, 0)^2: D. So et al., Primer, NeurIPS 2021."""

    def forward(self, s: Tensor) -> Tensor:
        """Elementwise."""
        return torch.relu(s).square()


class SquarePlusCube(nn.Module):
    """s^2 + s^3."""

    def forward(self, s: Tensor) -> Tensor:
        """Elementwise."""
        return s.square() * (1 + s)


def _max_pool(x: Tensor, numbers: Mapping[str, Any]) -> Tensor:
    """`max_pool2d`; on a CPU where windows lie side by side in a third of its time, bit for bit.

    They are laid out as channels, of which torch compares many at once, only to find where the largest are.
    """
    pairs = {k: (2 * v if isinstance(v, tuple) else (v, v))[:2] for k, v in numbers.items()}  # (2,) is both
    down, right = sides = pairs["kernel_size"]
    beside = (pairs["stride"], pairs["padding"], pairs["dilation"]) == (sides, (0, 0), (1, 1))
    if not beside or x.device.type != "cpu":
        largest: Tensor = functional.max_pool2d(x, **numbers)
        return largest
    height, width = x.shape[2] // down, x.shape[3] // right
    with torch.no_grad():
        seen = x[:, :, : height * down, : width * right].view(*x.shape[:2], height, down, width, right)
        channels = seen.permute(3, 5, 0, 1, 2, 4).reshape(1, down * right, 1, -1).permute(0, 3, 1, 2)
        _, chosen = functional.max_pool2d(channels, (down * right, 1), return_indices=True)
        inside, corners = (
            (torch.arange(high)[:, None] * (x.shape[3] * a) + torch.arange(wide) * b)
            for high, wide, a, b in ((down, right, 1, 1), (height, width, down, right))
        )
        place = inside.flatten().index_select(0, chosen.flatten()).view(*x.shape[:2], height, width) + corners
    return x.flatten(2).gather(2, place.flatten(2)).view_as(place)


Apply = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, Any]], Tensor]
"""(input, parameters, numbers) to output, records first."""

_APPLY: dict[type[nn.Module], Apply] = {
    nn.Linear: lambda x, p, _: functional.linear(x, p["weight"], p.get("bias")),
    nn.Conv2d: lambda x, p, n: functional.conv2d(x, p["weight"], p.get("bias"), **n),
    nn.MaxPool2d: lambda x, _, n: _max_pool(x, n),
    nn.AvgPool2d: lambda x, _, n: functional.avg_pool2d(x, **n),
    nn.Flatten: lambda x, _, __: x.flatten(1),
    nn.Unflatten: lambda x, _, n: x.reshape(len(x), *n["unflattened_size"], *x.shape[2:]),
    nn.ReLU: lambda x, _, __: functional.relu(x),
    SquaredReLU: lambda x, _, __: functional.relu(x).square(),
    SquarePlusCube: lambda x, _, __: x.square() * (1 + x),
    nn.Tanh: lambda x, _, __: torch.tanh(x),
    nn.Sigmoid: lambda x, _, __: torch.sigmoid(x),
    nn.Identity: lambda x, _, __: x,
    nn.Dropout: lambda x, _, __: x,  # networks are in evaluation mode
}

_NUMBERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("stride", "padding", "dilation"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding"),
    nn.Unflatten: ("unflattened_size",),
}

_USUAL: dict[type[nn.Module], dict[str, object]] = {
    nn.Conv2d: {"groups": 1, "padding_mode": "zeros"},
    nn.MaxPool2d: {"ceil_mode": False, "return_indices": False},
    nn.AvgPool2d: {"ceil_mode": False, "count_include_pad": True, "divisor_override": None},
    nn.Flatten: {"start_dim": 1, "end_dim": -1},
    nn.Unflatten: {"dim": 1},
}
"""Attributes that a layer must have; a layer with other values is not treated as one of these."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: its kind, the prefix of its parameters' names, and the numbers that it needs."""

    kind: type[nn.Module]
    prefix: str
    names: tuple[str, ...]
    numbers: Mapping[str, Any]

    def __call__(self, x: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """The layer's output at the network's named parameters; records first."""
        own = {name: parameters[self.prefix + name] for name in self.names}
        return _APPLY[self.kind](x, own, self.numbers)


@dataclass(frozen=True)
class Layers:
    """A chain of layers."""

    chain: tuple[Layer, ...]

    def scores(self, parameters: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """(records, features) to (records, outputs)."""
        x = features
        for layer in self.chain:
            x = layer(x, parameters)
        return x


class _NotPlainError(Exception):
    """A part that is not one of these layers."""


def plain_layers(module: nn.Module, num_features: int) -> Layers | None:
    """The module as a chain of layers; None if it is anything else."""
    try:
        chain = tuple(_layer(prefix, layer) for prefix, layer in _flat("", module))
        names = [layer.prefix + name for layer in chain for name in layer.names]
        if names != [name for name, _ in module.named_parameters()]:  # shared ones are named once there
            return None
        layers = Layers(_pooled_first(chain))
        _check_records_first(layers, dict(module.named_parameters()), num_features)
    except (_NotPlainError, RuntimeError):
        return None
    return layers


def _pooled_first(chain: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """ReLU after the pooling that follows it: the same numbers and gradients, from fewer."""
    order = list(chain)
    for i, (first, second) in enumerate(pairwise(chain)):
        if first.kind is nn.ReLU and second.kind is nn.MaxPool2d:
            order[i : i + 2] = second, first
    return tuple(order)


def _flat(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every layer with the prefix of its parameters' names, through sequences of sequences."""
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    _check_untouched(module)
    for name, layer in module.named_children():
        yield from _flat(f"{prefix}{name}.", layer)


def _layer(prefix: str, layer: nn.Module) -> Layer:
    _check_untouched(layer)
    kind = type(layer)
    usual, numbered = _USUAL.get(kind, {}), _NUMBERS.get(kind, ())
    if kind not in _APPLY:
        raise _NotPlainError
    held = {name: getattr(layer, name) for name in (*usual, *numbered)}
    if any(held[name] != value for name, value in usual.items()):
        raise _NotPlainError
    numbers = {name: _whole(held[name]) for name in numbered}
    own = {name: value for name, value in layer._parameters.items() if value is not None}
    names, axes = tuple(own), {nn.Linear: 2, nn.Conv2d: 4}.get(kind, 0)
    # a matrix, or kernels, with a bias for every output or none; nothing else has parameters
    weight, bias = own.pop("weight", None), own.pop("bias", None)
    fits = weight is None if axes == 0 else weight is not None and weight.dim() == axes
    if own or not fits or (bias is not None and (weight is None or bias.shape != weight.shape[:1])):
        raise _NotPlainError
    if kind is nn.Conv2d and not all(isinstance(pair, tuple) and len(pair) == 2 for pair in numbers.values()):
        raise _NotPlainError
    return Layer(kind, prefix, names, numbers)


def _whole(value: object) -> object:
    """A whole number or a tuple of them, by exact type."""
    values = tuple(value) if isinstance(value, tuple) else (value,)
    if not all(type(each) is int for each in values):
        raise _NotPlainError
    return values if isinstance(value, tuple) else value


def _check_untouched(layer: nn.Module) -> None:
    """Refuse hooks and a `forward` set on the object, which would make it another function."""
    own = vars(layer)
    if "forward" in own or any(value for name, value in own.items() if name.endswith("_hooks")):
        raise _NotPlainError


def _check_records_first(layers: Layers, parameters: Mapping[str, Tensor], num_features: int) -> None:
    """No layer takes the records for something else: a convolution would take three axes for one record's."""
    x = torch.zeros(2, num_features, dtype=torch.float64)
    for layer in layers.chain:
        if layer.kind in (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d) and x.dim() != 4:
            raise _NotPlainError
        x = layer(x, parameters)
        if x.dim() < 2 or len(x) != 2:
            raise _NotPlainError
