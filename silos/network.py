"""Clipped sums of a neural network's per-record gradients, without holding the gradients.

One forward and one backward pass capture every layer's inputs and output gradients; the layers turn
them into the norm of each record's whole gradient (or gradient difference), and then into the sum of
the clipped ones. Norm and sum are made of the same captured numbers, so that the clip holds whatever the
passes computed. Layers that are neither `nn.Linear` nor `nn.Conv2d` go through `torch.func`; a module
whose layers cannot be captured apart (shared parameters, a layer used twice, parameters that no layer
applies itself) goes through it as a whole. Records are treated in chunks, so memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.errors import Refused
from silos.layers import Capture, Layer, Term, Whole, layer_of
from silos.records import Block

CHUNK = 2**20
"""Numbers that a chunk of records holds at a time, about: 8 MB in float64."""

_LARGER, _ENOUGH = 4, 128
"""How many times more where records are large, since the calls of a chunk below so many records count too."""

_MARGIN = 1e-6
"""Clipped terms are this much shorter than the clip, which is more than rounding in their sum can add."""

Terms = Callable[[NeuralNetwork, Tensor, Tensor, Sequence[Tensor]], list[tuple[str, Term]]]
"""(problem, features (records, d), target (records,), points (d,) each) to terms by name prefix."""


def network_sum(
    problem: NeuralNetwork, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
) -> Tensor:
    """Sum over the records of clip(term); arguments and result as in `silos.statistics.clipped_sum`."""
    if block.mask is None:
        raise ValueError("a network's records need a mask: a row of zeros has a gradient")
    terms, width = strategy(problem)
    total = torch.zeros(len(block.members), problem.dimension, dtype=torch.float64)
    silo_count, row_count = block.mask.shape
    each = any(point.dim() == 2 for point in points)
    for silos, rows in _chunks(silo_count, row_count, width, each):
        piece = _Piece(
            block.features[silos, rows],
            block.target[silos, rows],
            block.mask[silos, rows],
            [point if point.dim() == 1 else point[silos][0] for point in points],
            _own(clip, silos),
        )
        total[silos] += _safe_sum(problem, terms, piece)
    return total


def _chunks(silos: int, rows: int, width: int, each: bool) -> Iterator[tuple[slice, slice]]:
    """Consecutive silos with all their rows, or one silo at a time, `width` records at most."""
    together = 1 if each else max(1, width // rows)
    for first in range(0, silos, together):
        for row in range(0, rows, width if together == 1 else rows):
            yield slice(first, first + together), slice(row, row + width)


@dataclass(frozen=True)
class _Piece:
    """Some records (silos, rows) of a block, and what is asked about them."""

    features: Tensor
    target: Tensor
    mask: Tensor
    points: Sequence[Tensor]
    clip: float | Tensor | None

    def halves(self) -> Iterator[_Piece]:
        """Half of the silos each, or half of the rows of one silo."""
        silos, rows = self.mask.shape
        everything = slice(None)
        if silos > 1:
            cuts = [(slice(0, silos // 2), everything), (slice(silos // 2, silos), everything)]
        else:
            cuts = [(everything, slice(0, rows // 2)), (everything, slice(rows // 2, rows))]
        for s, r in cuts:
            clip = _own(self.clip, s)
            yield _Piece(self.features[s, r], self.target[s, r], self.mask[s, r], self.points, clip)


def _own(clip: float | Tensor | None, silos: slice) -> float | Tensor | None:
    return clip[silos] if isinstance(clip, Tensor) and clip.dim() > 0 else clip


def _safe_sum(problem: NeuralNetwork, terms: Terms, piece: _Piece) -> Tensor:
    """The piece's sum, (silos, d); a record that the module cannot be applied to counts as zero.

    Such a record must not decide whether the silo answers. Another one stands in its place without weight:
    a batch of another size could round every other record's term differently.
    """
    try:
        return _sum(problem, terms, piece)
    except Exception:
        usable = _usable(problem, terms, piece)
        if not bool(usable.any()):
            return torch.zeros(len(piece.mask), problem.dimension, dtype=torch.float64)
        silo, row = usable.nonzero()[0]
        features = torch.where(usable.unsqueeze(-1), piece.features, piece.features[silo, row])
        target = torch.where(usable, piece.target, piece.target[silo, row])
        mask = piece.mask * usable
        return _sum(problem, terms, replace(piece, features=features, target=target, mask=mask))


def _usable(problem: NeuralNetwork, terms: Terms, piece: _Piece) -> Tensor:
    """Which records the module can be applied to, (silos, rows) of truth values, found by halving.

    Whatever it raises: an assertion, or a layer that a branch leaves out, says as much about a record.
    """
    try:
        _sum(problem, terms, piece)
    except Exception:
        if piece.mask.numel() == 1:
            return torch.zeros_like(piece.mask, dtype=torch.bool)
        parts = [_usable(problem, terms, half) for half in piece.halves()]
        return torch.cat(parts, dim=0 if len(piece.mask) > 1 else 1)
    return torch.ones_like(piece.mask, dtype=torch.bool)


def _sum(problem: NeuralNetwork, terms: Terms, piece: _Piece) -> Tensor:
    found = terms(problem, piece.features.flatten(0, 1), piece.target.flatten(), piece.points)
    square = sum((term.square for _, term in found), start=torch.zeros((), dtype=torch.float64))
    norm = square.sqrt() + sum(term.slack for _, term in found)
    bad = ~norm.isfinite()
    if bool(bad.any()):
        for _, term in found:
            term.clear(bad)
    weight = torch.where(bad, 0.0, piece.mask.flatten().double()).view(piece.mask.shape)
    if piece.clip is not None:
        bound = piece.clip.double() if isinstance(piece.clip, Tensor) else piece.clip
        length = torch.where(bad, 1.0, norm).clamp_min(torch.finfo(torch.float64).tiny).view_as(weight)
        weight = weight * (bound * (1 - _MARGIN) / length).clamp_max(1.0)
    sums = {f"{prefix}{name}": value for prefix, term in found for name, value in term.sums(weight).items()}
    return torch.cat([sums[name] for name in problem.shapes], dim=1)


@lru_cache(maxsize=16)
def strategy(problem: NeuralNetwork) -> tuple[Terms, int]:
    """How to find terms, and how many records at a time: tried on made-up records.

    Layers apart where that gives every record the gradient that autograd gives it alone, else the module
    as a whole. Their sum would not tell: it is right, too, where a layer has records in another order, or
    something else in their place, such as steps of a sequence, which would be clipped in their stead.

    Raises:
        Refused: neither does.
    """
    made = torch.Generator().manual_seed(0)
    features = torch.rand(4, problem.num_features, dtype=torch.float64, generator=made)
    target = torch.arange(4, dtype=torch.float64) % max(2, problem.num_outputs)
    point = 1.5 * problem.start(1).double()  # not the values that the module itself holds
    piece = _Piece(features.unsqueeze(1), target.unsqueeze(1), torch.ones(4, 1), [point], None)
    w = point.clone().requires_grad_()
    losses = problem.losses(problem.call(problem.parameters(w), features), target)
    each = [torch.autograd.grad(loss, w, retain_graph=True)[0] for loss in losses]
    expected = torch.stack(each)
    for terms, width in ((layerwise, _layer_width), (together, _whole_width)):
        try:
            if torch.allclose(_sum(problem, terms, piece), expected, rtol=1e-6, atol=1e-9):
                return terms, width(problem, features, target, point)
        except (RuntimeError, ValueError, KeyError, TypeError):
            continue
    raise Refused("the module's gradient cannot be taken record by record (torch.func.vmap)")


def _layer_width(problem: NeuralNetwork, features: Tensor, target: Tensor, point: Tensor) -> int:
    found = _captured(problem, features, target, point)
    record = sum(layer.elements(capture) for layer, capture in found.values())
    return max(1, CHUNK // record, min(_ENOUGH, _LARGER * CHUNK // record))


def _whole_width(problem: NeuralNetwork, features: Tensor, target: Tensor, point: Tensor) -> int:
    return max(1, CHUNK // problem.dimension)


def layerwise(
    problem: NeuralNetwork, features: Tensor, target: Tensor, points: Sequence[Tensor]
) -> list[tuple[str, Term]]:
    """Terms of every layer, from one forward and backward pass a point."""
    found = [_captured(problem, features, target, point) for point in points]
    return [
        (prefix, layer.term([captures[prefix][1] for captures in found]))
        for prefix, (layer, _) in found[0].items()
    ]


def together(
    problem: NeuralNetwork, features: Tensor, target: Tensor, points: Sequence[Tensor]
) -> list[tuple[str, Term]]:
    """One term, of the whole module."""

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scores = problem.call(problem.parameters(w), x.unsqueeze(0))
        return problem.losses(scores, y.unsqueeze(0)).squeeze()

    gradient, *others = [vmap(grad(loss), (None, 0, 0))(p, features, target).double() for p in points]
    for other in others:
        gradient = gradient - other
    parts = torch.split(gradient, [shape.numel() for shape in problem.shapes.values()], dim=1)
    return [("", Whole(dict(zip(problem.shapes, parts, strict=True))))]


def _captured(
    problem: NeuralNetwork, features: Tensor, target: Tensor, point: Tensor
) -> dict[str, tuple[Layer, Capture]]:
    """Every layer's inputs and output gradients, by the prefix of its parameters' names.

    Parameters need no gradient, so neither does anything before the first layer's output: the backward
    pass ends there, and computes no layer's parameter gradients.

    Raises:
        RuntimeError: a layer is used twice, or not as a function of one tensor.
    """
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        single = len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)
        if module in seen or not single:
            raise RuntimeError("layers cannot be captured apart")
        assert isinstance(inputs[0], Tensor)
        assert isinstance(output, Tensor)
        seen[module] = inputs[0].detach(), output if output.requires_grad else output.requires_grad_()

    layers = {name: layer for name, layer in problem.module.named_modules() if _owns(layer)}
    if any(_owns(part) for layer in layers.values() for part in layer.modules() if part is not layer):
        raise RuntimeError("a layer within a layer cannot be captured apart")
    hooks = [layer.register_forward_hook(keep) for layer in layers.values()]
    try:
        parameters = problem.parameters(point.detach())
        scores = problem.call(parameters, features)
    finally:
        for hook in hooks:
            hook.remove()
    coefficient = problem.head.coefficient(scores.detach(), target, torch.ones_like(target))
    outputs = [seen[layer][1] for layer in layers.values()]
    slopes = torch.autograd.grad(scores, outputs, coefficient, materialize_grads=True)
    result = {}
    for (name, layer), slope in zip(layers.items(), slopes, strict=True):
        prefix = f"{name}." if name else ""
        own = {key: parameters[prefix + key] for key, _ in layer.named_parameters(recurse=False)}
        result[prefix] = layer_of(layer), Capture(own, seen[layer][0], slope)
    return result


def _owns(layer: nn.Module) -> bool:
    return next(layer.parameters(recurse=False), None) is not None
