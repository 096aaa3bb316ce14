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

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from math import ceil

import torch
from torch import Tensor
from torch.func import grad

from fedsim.problems.capture import each, largest_tile, made_up, tile_of
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_form import Graph
from fedsim.problems.network_layers import Layers
from fedsim.problems.network_pass import Chain
from silos.vault.layers import PLACES, Term, Whole, elements, term_of
from silos.vault.sums import Block, Clip, Seen

CHUNK = 2**22  # bytes that a chunk of records holds at a time, about

_LARGER, _ENOUGH, _GROWN = 4, 100, 1024
"""How many times more where records are large, since the calls of a chunk below so many records count too; or
as many numbers as d so many times, up to so many records: a chunk reads and writes all matrices and sums."""

_ON_DEVICE = 128
"""How many times more on a device other than the CPU, where calls take long and memory is fast: 512 MB."""

_MARGIN = 1e-6
"""Clipped terms are this much shorter than the clip, which is more than rounding in their sum can add."""

Found = Sequence[tuple[str, Term]]  # by name prefix
Terms = Callable[[Tensor, Tensor], Found]
"""Terms of records by features (records, d) and target (records,)."""

Make = Callable[[NeuralNetwork, torch.dtype, Sequence[Tensor]], Terms]
"""What makes them at points (d,) each, once for all chunks."""


def network_sum(
    problem: NeuralNetwork, block: Block, points: Sequence[Tensor], clip: Clip, seen: Seen | None = None
) -> Tensor:
    """Sum over the records of clip(term); arguments and result as in `silos.vault.records.clipped_sum`."""
    sizes = [shape.numel() for shape in problem.shapes.values()]
    total = torch.empty(len(block.members), sum(sizes), dtype=torch.float64, device=problem.device)
    for silos, rows, mask, found in _terms(problem, block, points):
        into = dict(zip(problem.shapes, torch.split(total[silos], sizes, dim=1), strict=True))
        bound = _own(clip, silos, problem.device)
        _add_clipped(found, into, mask, bound, seen, whole=block.whole, first=rows.start == 0)
    return total.cpu()


def lengths(problem: NeuralNetwork, block: Block, point: Tensor) -> Tensor:
    """Length of every record's gradient, (silos, rows), float64; 0 for a row that adds nothing."""
    norms = torch.zeros_like(block.target, dtype=torch.float64)
    for silos, rows, mask, found in _terms(problem, block, [point]):
        norm = _square(found).sqrt().view(mask.shape)
        norms[silos, rows] = torch.where(mask > 0, norm, 0.0).cpu()
    return norms


def _terms(
    problem: NeuralNetwork, block: Block, points: Sequence[Tensor]
) -> Iterator[tuple[slice, slice, Tensor, Found]]:
    """The records' terms, a chunk at a time: its silos and rows, their mask, and terms by name prefix."""
    if block.mask is None:
        raise ValueError("a network's records need a mask: a row of zeros has a gradient")
    device, dtype = problem.device, block.features.dtype
    make, width = strategy(problem, dtype)
    each = any(point.dim() == 2 for point in points)
    points = [point.detach().to(device) for point in points]
    features, target = block.on(device)
    terms, last = None, None
    for silos, rows in _chunks(len(block.mask), block.mask.shape[1], width, each):
        if terms is None or (each and silos != last):
            at = [point if point.dim() == 1 else point[silos][0] for point in points]
            terms, last = make(problem, dtype, at), silos
        x, y = features[silos, rows].flatten(0, 1), target[silos, rows].flatten()
        yield silos, rows, block.mask[silos, rows].to(device), terms(x, y)


def _square(found: Found) -> Tensor:
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


def _add_clipped(
    found: Found,
    into: Mapping[str, Tensor],
    mask: Tensor,
    bound: Clip,
    seen: Seen | None,
    *,
    whole: bool,
    first: bool,
) -> None:
    """Add the sum over rows of clip(term) to {parameter: (silos, size)}, which the first overwrites; `mask`
    (silos, rows) is 0 for a row that adds nothing. `whole`: a term that is not finite makes its sum NaN; it
    else counts as zero.
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
    for prefix, term in found:
        term.add(weight, into, prefix, first)
    if whole and bool(bad.any()):
        for own in into.values():
            own[(bad.view(mask.shape) & (mask > 0)).any(1)] = torch.nan


@lru_cache(maxsize=16)
def strategy(problem: NeuralNetwork, dtype: torch.dtype) -> tuple[Make, int]:
    """What makes terms at points, and the number of records for each call."""
    form = problem.form(dtype)
    chunk = CHUNK if problem.device == "cpu" else _ON_DEVICE * CHUNK
    if not isinstance(form, Layers):
        rows = _largest(problem, form)
        return together, rows * max(1, chunk // dtype.itemsize // _numbers(problem, form) // rows)
    record, most = _layer_numbers(problem, dtype)
    fit = chunk // (record * dtype.itemsize)
    grown = min(_GROWN, _LARGER * problem.dimension // record)
    return layerwise, max(1, min(most, max(fit, grown, min(_ENOUGH, _LARGER * fit))))


def _layer_numbers(problem: NeuralNetwork, dtype: torch.dtype) -> tuple[int, int]:
    """Numbers that a record's captures and terms take, from a made-up one, and how many records may be added
    at once.
    """
    features = torch.zeros(1, problem.num_features, dtype=dtype)
    chain = Chain(problem, problem.start(0).to(dtype))
    found = zip(chain.matrices, chain.captured(features, torch.zeros(1, dtype=dtype)), strict=True)
    numbers, places = zip(*(elements(matrix, capture) for matrix, capture in found), strict=True)
    return sum(numbers), PLACES // max(places)


def layerwise(problem: NeuralNetwork, dtype: torch.dtype, points: Sequence[Tensor]) -> Terms:
    """Terms of every layer with parameters, from one forward and backward pass a point."""
    chains = [Chain(problem, point) for point in points]

    def terms(features: Tensor, target: Tensor) -> Found:
        found = [chain.captured(features, target) for chain in chains]
        matrices = chains[0].matrices
        return [
            (matrix.layer.prefix, term_of(matrix, captures))
            for matrix, *captures in zip(matrices, *found, strict=True)
        ]

    return terms


def together(problem: NeuralNetwork, dtype: torch.dtype, points: Sequence[Tensor]) -> Terms:
    """One term, of the whole module: every record's gradient by itself, a tile of them at a time."""
    term, rows = _gradient(problem, dtype, points), tile(problem, dtype)
    sizes = [shape.numel() for shape in problem.shapes.values()]

    def terms(features: Tensor, target: Tensor) -> Found:
        found = each(term, (problem.dimension,), torch.float64, features, target, tile=rows)
        return [("", Whole(dict(zip(problem.shapes, torch.split(found, sizes, dim=1), strict=True))))]

    return terms


def _gradient(problem: NeuralNetwork, dtype: torch.dtype, points: Sequence[Tensor]) -> Callable[..., Tensor]:
    """The gradient of one record at the first point, less those at others."""
    form = problem.form(dtype)
    assert isinstance(form, Graph)

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        scores = form.one(problem.parameters(w), x, exact=True)
        return problem.losses(scores if problem.num_outputs > 1 else scores.squeeze(0), y)

    def term(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = reduce(torch.sub, (grad(loss)(point, x, y).double() for point in points))
        return found

    return term


def _numbers(problem: NeuralNetwork, form: Graph) -> int:
    """That a record's gradient holds on the way."""
    return problem.dimension + form.record.numbers


def _largest(problem: NeuralNetwork, form: Graph) -> int:
    return largest_tile(_numbers(problem, form), form.record.raises)


@lru_cache(maxsize=16)
def tile(problem: NeuralNetwork, dtype: torch.dtype) -> int:
    """Records whose gradients are taken at a time (`tile_of`)."""
    form = problem.form(dtype)
    assert isinstance(form, Graph)
    point, *rows = made_up((problem.dimension,), (problem.num_features,), (), dtype=dtype)
    term = _gradient(problem, dtype, [point[0]])
    return tile_of(term, rows[0], torch.zeros_like(rows[1]), tile=_largest(problem, form))
