"""Clipped sums of a neural network's per-record gradients, without holding the gradients.

A chain of layers that keep records apart (`fedsim.problems.network_layers`) takes one forward and one
backward pass, which capture every layer's inputs and output gradients; the layers turn them into the norm of
each record's whole gradient (or gradient difference), and then into the sum of the clipped ones. Norm and sum
are made of the same captured numbers, so that the clip holds whatever the passes computed. Of any other
module the gradient is taken record by record, from the graph of one record (`fedsim.problems.capture`).
Either way no record reaches another's term, in its silo or in a co-hosted one. Records are treated in chunks,
so memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor
from torch.func import grad

from fedsim.problems.capture import each
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_form import Graph
from fedsim.problems.network_layers import Layers
from silos.layers import Capture, Matrix, Term, Whole
from silos.sums import Block, Seen

CHUNK = 2**22  # bytes that a chunk of records holds at a time, about

_LARGER, _ENOUGH = 4, 100
"""How many times more where records are large, since the calls of a chunk below so many records count too."""

_ON_DEVICE = 128
"""How many times more on a device other than the CPU, where calls take long and memory is fast: 512 MB."""

_MARGIN = 1e-6
"""Clipped terms are this much shorter than the clip, which is more than rounding in their sum can add."""

Clip = float | Tensor | None

Terms = Callable[[NeuralNetwork, Tensor, Tensor, Sequence[Tensor]], list[tuple[str, Term]]]
"""(problem, features (records, d), target (records,), points (d,) each) to terms by name prefix."""


def network_sum(
    problem: NeuralNetwork, block: Block, points: Sequence[Tensor], clip: Clip, seen: Seen | None = None
) -> Tensor:
    """Sum over the records of clip(term); arguments and result as in `silos.records.clipped_sum`."""
    total = torch.zeros(len(block.members), problem.dimension, dtype=torch.float64)
    whole = block.whole
    for silos, _, mask, found in _terms(problem, block, points):
        total[silos] += _sum(found, problem, mask, _own(clip, silos, problem.device), seen, whole).cpu()
    return total


def lengths(problem: NeuralNetwork, block: Block, point: Tensor, alone: bool) -> Tensor:
    """Length of every record's gradient, (silos, rows), float64; 0 for a row that adds nothing. `alone`: one
    record at a time, since what is computed together is rounded by place.
    """
    norms = torch.zeros_like(block.target, dtype=torch.float64)
    for silos, rows, mask, found in _terms(problem, block, [point], alone):
        norm = _square(found).sqrt().view(mask.shape)
        norms[silos, rows] = torch.where(mask > 0, norm, 0.0).cpu()
    return norms


def _terms(
    problem: NeuralNetwork, block: Block, points: Sequence[Tensor], alone: bool = False
) -> Iterator[tuple[slice, slice, Tensor, list[tuple[str, Term]]]]:
    """The records' terms, a chunk at a time: its silos and rows, their mask, and terms by name prefix."""
    if block.mask is None:
        raise ValueError("a network's records need a mask: a row of zeros has a gradient")
    terms, width = strategy(problem, block.features.dtype)
    silo_count, row_count = block.mask.shape
    each, device = any(point.dim() == 2 for point in points), problem.device
    features, target = block.on(device)
    for silos, rows in _chunks(silo_count, row_count, 1 if alone else width, each):
        x, y = features[silos, rows].flatten(0, 1), target[silos, rows].flatten()
        at = [(point if point.dim() == 1 else point[silos][0]).to(device) for point in points]
        yield silos, rows, block.mask[silos, rows].to(device), terms(problem, x, y, at)


def _square(found: Sequence[tuple[str, Term]]) -> Tensor:
    return sum((term.square for _, term in found), start=torch.zeros((), dtype=torch.float64))


def _chunks(silos: int, rows: int, width: int, each: bool) -> Iterator[tuple[slice, slice]]:
    """Consecutive silos with all their rows, or one silo at a time, `width` records at most."""
    together = 1 if each else max(1, width // rows)
    step = max(1, ceil(rows / max(1, ceil(rows / width))) if together == 1 else rows)
    for first in range(0, silos, together):
        for row in range(0, rows, step):
            yield slice(first, first + together), slice(row, row + step)


def _own(clip: Clip, silos: slice, device: str) -> Clip:
    return clip[silos].to(device) if isinstance(clip, Tensor) and clip.dim() > 0 else clip


def _sum(
    found: Sequence[tuple[str, Term]],
    problem: NeuralNetwork,
    mask: Tensor,
    bound: Clip,
    seen: Seen | None,
    whole: bool,
) -> Tensor:
    """Sum over rows of clip(term), (silos, d); `mask` (silos, rows) is 0 for a row that adds nothing.

    `whole`: a term that is not finite makes its sum NaN, where it else counts as zero.
    """
    norm = _square(found).sqrt()
    bad = ~norm.isfinite()
    if bool(bad.any()):
        for _, term in found:
            term.clear(bad)
    weight = torch.where(bad, 0.0, mask.flatten().double()).view(mask.shape)
    if bound is not None:
        clip = (bound.double() if isinstance(bound, Tensor) else bound) * (1 - _MARGIN)
        length = torch.where(bad, 1.0, norm).clamp_min(torch.finfo(torch.float64).tiny).view_as(weight)
        if seen is not None:
            seen(length.cpu(), (torch.ones_like(length) * clip).cpu(), weight.cpu())
        weight = weight * (clip / length).clamp_max(1.0)
    sums = {f"{prefix}{name}": value for prefix, term in found for name, value in term.sums(weight).items()}
    total = torch.cat([sums[name] for name in problem.shapes], dim=1)
    if whole and bool(bad.any()):
        total[(bad.view(mask.shape) & (mask > 0)).any(1)] = torch.nan
    return total


@lru_cache(maxsize=16)
def strategy(problem: NeuralNetwork, dtype: torch.dtype) -> tuple[Terms, int]:
    """The function that computes terms, and the number of records for each call."""
    form = problem.form(dtype)
    if isinstance(form, Layers):
        terms, record = layerwise, _layer_numbers(problem, dtype)
    else:
        terms, record = together, problem.dimension + form.record.numbers
    chunk = CHUNK if problem.device == "cpu" else _ON_DEVICE * CHUNK
    fit = chunk // (record * dtype.itemsize)
    return terms, max(1, fit, min(_ENOUGH, _LARGER * fit))


def _layer_numbers(problem: NeuralNetwork, dtype: torch.dtype) -> int:
    """Numbers that a record's captures and terms take, from a made-up one."""
    features = torch.zeros(1, problem.num_features, dtype=dtype)
    found = _captured(problem, features, torch.zeros(1, dtype=dtype), problem.start(0).to(dtype))
    return sum(matrix.elements(capture) for matrix, capture in found.values())


def layerwise(
    problem: NeuralNetwork, features: Tensor, target: Tensor, points: Sequence[Tensor]
) -> list[tuple[str, Term]]:
    """Terms of every layer with parameters, from one forward and backward pass a point."""
    found = [_captured(problem, features, target, point) for point in points]
    return [
        (prefix, matrix.term([captures[prefix][1] for captures in found]))
        for prefix, (matrix, _) in found[0].items()
    ]


def together(
    problem: NeuralNetwork, features: Tensor, target: Tensor, points: Sequence[Tensor]
) -> list[tuple[str, Term]]:
    """One term, of the whole module: every record's gradient by itself."""
    form = problem.form(features.dtype)
    assert isinstance(form, Graph)

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scores = form.one(problem.parameters(w), x)
        return problem.losses(scores if problem.num_outputs > 1 else scores.squeeze(0), y)

    def term(x: Tensor, y: Tensor) -> Tensor:
        first, *others = [grad(loss)(point, x, y).double() for point in points]
        total: Tensor = first
        for other in others:
            total = total - other
        return total

    terms = each(term, (problem.dimension,), torch.float64, features, target)
    parts = torch.split(terms, [shape.numel() for shape in problem.shapes.values()], dim=1)
    return [("", Whole(dict(zip(problem.shapes, parts, strict=True))))]


def _captured(
    problem: NeuralNetwork, features: Tensor, target: Tensor, point: Tensor
) -> dict[str, tuple[Matrix, Capture]]:
    """Inputs and output gradients of every layer with parameters, by the prefix of their names.

    Parameters need no gradient, so neither does anything before the first layer's output: the backward
    pass ends there, and computes no layer's parameter gradients.
    """
    parameters, x = problem.parameters(point.detach()), features
    form = problem.form(features.dtype)
    assert isinstance(form, Layers)
    matrices: list[Matrix] = []
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for layer in form.chain:
        if not layer.names:
            x = layer(x, parameters)
            continue
        matrices.append(Matrix(layer, **{name: parameters[layer.prefix + name] for name in layer.names}))
        inputs.append(matrices[-1].inputs(x.detach()))
        x = layer(x, parameters) if outputs else matrices[-1].outputs(inputs[-1]).requires_grad_()
        outputs.append(x)
    scores = x.squeeze(1) if problem.num_outputs == 1 else x
    coefficient = problem.head.coefficient(scores.detach(), target, torch.ones_like(target))
    slopes = torch.autograd.grad(scores, outputs, coefficient, materialize_grads=True)
    return {
        matrix.layer.prefix: (matrix, Capture(seen, slope))
        for matrix, seen, slope in zip(matrices, inputs, slopes, strict=True)
    }
