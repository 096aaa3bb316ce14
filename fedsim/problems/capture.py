"""Runs untrusted code on records so that each result depends on one record alone, by construction.

Clipping bounds the sensitivity of a sum only if no record influences another record's term, and no number of
tests can show that for a function of a batch. So the function never gets a batch. It runs once, on shapes
without values (`torch.export`), which records a graph of torch's operations on *one* record, all of them on
the list of `fedsim.problems.operations`. Only this graph runs on records, one by one under `vmap`. Nothing
that a silo releases comes from the function itself: neither its Python code, nor its state, nor a custom
gradient or batching rule runs on a record.

A function that looks at values to decide what to do has no such graph, and is refused.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim.problems.conversion import converted
from fedsim.problems.operations import TABLE, NotCapturedError
from fedsim.problems.program import Program

Function = Callable[..., Tensor]


def capture(module: nn.Module, *record: Tensor) -> Program:
    """The module's program for one record, whose tensors have the shapes and types of `record`, whatever
    their values. NotCapturedError: there is no graph, or it has an operation that a record must not be given
    to.

    `module` maps the record's tensors to one tensor; its parameters become arguments, its buffers and other
    tensors constants, with the values that they have now.
    """
    try:
        with _quiet(), sdpa_kernel(SDPBackend.MATH):  # the other ways to attention are single operations
            exported = torch.export.export(module, record, strict=False).run_decompositions(_decompositions())
    except Exception as error:  # whatever its code raises when it runs without values
        text = str(error).strip() or type(error).__name__
        raise NotCapturedError(text.splitlines()[0][:160]) from None
    signature = exported.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise NotCapturedError("it writes to its buffers or to the record")
    if len(signature.output_specs) != 1:
        raise NotCapturedError("it must give one tensor")
    names = {id(value): name for name, value in module.named_parameters()}
    values = {**exported.state_dict, **exported.constants}
    aliases = dict(module.named_parameters(remove_duplicate=False))
    inputs: list[str | Tensor | None] = []
    for spec in signature.input_specs:
        if spec.target is None:
            inputs.append(None)
        elif spec.target in aliases:
            inputs.append(names[id(aliases[spec.target])])
        else:
            inputs.append(_constant(values[spec.target]))
    return converted(list(exported.graph_module.graph.nodes), inputs)


def _constant(value: object) -> Tensor:
    """A copy of the module's buffer or other tensor; a subclass of Tensor could run code and is refused."""
    if type(value) not in (Tensor, nn.Parameter):
        raise NotCapturedError(f"it holds a {type(value).__name__} where a plain tensor would do")
    copied = Tensor.clone(Tensor.detach(value), memory_format=torch.contiguous_format)  # type: ignore[arg-type]
    if type(copied) is not Tensor:
        raise NotCapturedError("it holds a tensor that cannot be copied")
    return copied


def _decompositions() -> dict[Any, Any]:
    """Torch's decompositions, except where an operation has a finite gradient and its parts do not."""
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    for whole in _WHOLE:
        table.pop(whole, None)
    return {
        **table,
        torch.ops.aten.embedding.default: _embedding,
        torch.ops.aten._trilinear.default: _trilinear,
    }


_KEPT = ("detach", "softplus", "mish", "celu", "std")
_WHOLE = [entry.operation for name, entry in TABLE.items() if name.split(".")[0] in _KEPT]
_WHOLE += [torch.ops.aten.eye.default, torch.ops.aten.eye.m]  # whose parts are of bytes


def _embedding(weight: Tensor, indices: Tensor, *_: object) -> Tensor:
    """`aten.embedding`, which reaches into the next record if a look-up table is made of a record."""
    return weight.index_select(0, indices.reshape(-1)).reshape(*indices.shape, weight.shape[1])


def _trilinear(*given: Any) -> Tensor:
    """`aten._trilinear`, of which `nn.Bilinear` is made: the sum over some axes of a product of three."""
    *factors, summed = *given[:3], given[6]
    for i, axes in enumerate(given[3:6]):
        for axis in axes:
            factors[i] = factors[i].unsqueeze(axis)
    return torch.sum(factors[0] * factors[1] * factors[2], summed)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about the module and its tracing: the error has the reason."""
    remarks = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before, remarks.disabled = remarks.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.disabled = before


class FunctionModule(nn.Module):
    """A function of tensors as a module, so that it can be captured."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *record: Tensor) -> Tensor:
        """The function's value."""
        return self._function(*record)


def each(function: Function, shape: tuple[int, ...], dtype: torch.dtype, *rows: Tensor, tile: int) -> Tensor:
    """The function's value for every row; (rows, *shape) of the floating-point `dtype`, NaN where it raises.

    It takes one row's tensors to a tensor of the given shape; there is at least one row, and rows are first.
    They are computed `tile` at a time in the same buffers, which copies of a row fill up: so what a row is
    computed with depends on its place in the tile alone, and by `tile_of` not on that.

    A row that makes it raise (an index out of range, a singular matrix) decides nothing but its own value:
    the others of its tile are computed again at their places, by bisection.
    RecursionError and MemoryError: the process is exhausted, which is no record's doing.
    """
    mapped, count = vmap(lambda *row: function(*row).to(dtype)), len(rows[0])
    result = rows[0].new_full((count, *shape), torch.nan, dtype=dtype)
    buffers = [row.new_empty(tile, *row.shape[1:]) for row in rows]
    parts = [(first, min(first + tile, count)) for first in range(0, count, tile)]
    while parts:  # bisection without recursion: a deeper stack could fail where `mapped` does not
        first, last = parts.pop()
        places = slice(first % tile, first % tile + last - first)
        for buffer, row in zip(buffers, rows, strict=True):
            if last - first < tile:
                buffer.copy_(row[first].expand_as(buffer))
            buffer[places] = row[first:last]
        try:
            found = mapped(*buffers)
        except (RecursionError, MemoryError):
            raise
        except Exception:
            middle = (first + last) // 2
            parts += [(first, middle), (middle, last)] if last - first > 1 else []
        else:
            result[first:last] = found[places]
    return result


_LEAST_TILE, _LARGEST_TILE = 16, 8192
_TILE_NUMBERS, _MOST_NUMBERS = 2**19, 2**24  # that a tile holds: of many rows, and of the fewest
_RAISING = 32  # a row that raises is found by computing its whole tile again, twice for each row at worst


def made_up(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Made-up rows, the same each time, of tensors of these shapes; (8, *shape) each."""
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(8, *shape, dtype=dtype, generator=rng) for shape in shapes]


def largest_tile(numbers: int, raises: bool) -> int:
    """How many rows that hold so many numbers each, and may make a program raise, are computed at a time: a
    power of two from 16 on, or one.

    torch treats 16 numbers at a time, and those left over otherwise. In tiles of fewer rows they would be the
    last row's, and made-up rows need not show it, of which a function may make nothing.
    """
    fit = min(_RAISING if raises else _LARGEST_TILE, _TILE_NUMBERS // max(1, numbers))
    if fit >= _LEAST_TILE:
        return 1 << (fit.bit_length() - 1)
    return _LEAST_TILE if _LEAST_TILE * numbers <= _MOST_NUMBERS else 1


def tile_of(function: Function, *rows: Tensor, tile: int) -> int:
    """Rows for `each` at a time: `tile` if every made-up row has the same bits at all its places, else 1."""
    finite = tile == 1
    for row in zip(*rows, strict=True):
        try:
            found = vmap(function)(*(own.expand(tile, *own.shape).contiguous() for own in row))
        except (RecursionError, MemoryError):
            raise
        except Exception:  # as a record may
            continue
        bits = found.detach().reshape(tile, -1).contiguous().view(torch.uint8)
        if not bool((bits == bits[0]).all()):
            return 1
        finite = finite or bool(found.isfinite().all())
    return tile if finite else 1
