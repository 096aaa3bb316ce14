"""What a stranger's code computes of a record: from that record alone, by construction.

A clip bounds what one record does to a sum only if no other record's term depends on it, and no number of
trials can show that of a function that is handed a batch. So it is handed none. The function runs once, on
shapes without values (`torch.export`); what it did is kept as a graph of torch's own operations on *one*
record, all of them on the list of `fedsim.problems.operations`. The graph is what runs on records, one by one
under `vmap`. For nothing that a silo releases does the function itself run on a record: not its Python code,
nor its state, nor a gradient or a batching rule of its own.

A function that looks at values to decide what to do has no such graph, and is refused.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim.problems.operations import embedding, objection

Function = Callable[..., Tensor]

_WITHOUT_RULE = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operations that vmap has no rule for: they are taken apart."""


class NotCapturedError(ValueError):
    """Why a function has no graph."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A function of one record as a graph.

    Args:
        graph: operations on parameters, constants and one record's tensors, in this order of arguments.
        arguments: the name of a parameter, a constant, or None for the next of the record's tensors.
        numbers: how many numbers the operations on one record give.
    """

    graph: GraphModule
    arguments: tuple[str | Tensor | None, ...]
    numbers: int

    def __call__(self, parameters: Mapping[str, Tensor], *record: Tensor) -> Tensor:
        """The function's value; `record` in the shapes and types that it was captured with."""
        own = iter(record)
        values = [
            next(own) if what is None else parameters[what] if isinstance(what, str) else what
            for what in self.arguments
        ]
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the other ways to attention
            result: Tensor = self.graph(*values)[0]
        return result


def capture(module: nn.Module, *record: Tensor) -> Captured:
    """The module's graph for one record.

    Args:
        module: maps the record's tensors to one tensor; its parameters become arguments, its buffers and
            other tensors constants, with the values that they have now.
        record: tensors of the record's shapes and types; their values do not matter.

    Raises:
        NotCapturedError: there is no graph, or it has an operation that a record must not be given to.
    """
    try:
        with _quiet():
            program = torch.export.export(module, record, strict=False).run_decompositions(_decompositions())
    except Exception as error:  # whatever its code raises when it runs without values
        raise NotCapturedError(_first_line(error)) from None
    signature, graph = program.graph_signature, program.graph_module
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise NotCapturedError("it writes to its buffers or to the record")
    if len(signature.output_specs) != 1:
        raise NotCapturedError("it must give one tensor")
    for reason in filter(None, map(objection, graph.graph.nodes)):
        raise NotCapturedError(reason)
    names = {id(value): name for name, value in module.named_parameters()}
    values = {**program.state_dict, **program.constants}
    aliases = dict(module.named_parameters(remove_duplicate=False))
    arguments: list[str | Tensor | None] = []
    for spec in signature.input_specs:
        if spec.target is None:
            arguments.append(None)
        elif spec.target in aliases:
            arguments.append(names[id(aliases[spec.target])])
        else:
            arguments.append(_constant(values[spec.target]))
    return Captured(graph, tuple(arguments), sum(map(_numbers, graph.graph.nodes)))


def _constant(value: object) -> Tensor:
    """A copy of a buffer or another tensor of the module's; one of another type would run its own code."""
    if type(value) not in (Tensor, nn.Parameter):
        raise NotCapturedError(f"it holds a {type(value).__name__} where a plain tensor would do")
    assert isinstance(value, Tensor)
    return value.detach().clone()


def _decompositions() -> dict[Any, Any]:
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    apart = {op: how for op, how in table.items() if op._schema.name.removeprefix("aten::") in _WITHOUT_RULE}
    return {**apart, torch.ops.aten.embedding.default: embedding}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on the module's style and on what it cannot follow: the error says it."""
    remarks = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before, remarks.disabled = remarks.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.disabled = before


def _numbers(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) and node.op == "call_function" else 0


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]


class FunctionModule(nn.Module):
    """A function of tensors as a module, so that it can be captured."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *record: Tensor) -> Tensor:
        """The function's value."""
        return self._function(*record)


def each(function: Function, shape: tuple[int, ...], dtype: torch.dtype, *rows: Tensor) -> Tensor:
    """The function's value for every row; (rows, *shape) of `dtype`, NaN where it raises.

    A row that makes it raise (an index out of range, a matrix that is singular) must not decide whether
    there is an answer. Another row stands in its place meanwhile: a batch of another size could round every
    other row's value differently.

    Args:
        function: of one row's tensors, a tensor of the given shape.
        dtype: a floating-point type.
        rows: tensors with rows first, at least one row.

    Raises:
        RecursionError, MemoryError: the process is exhausted, which is no record's doing.
    """
    mapped, count = vmap(lambda *row: function(*row).to(dtype)), len(rows[0])
    good, parts = torch.ones(count, dtype=torch.bool), [(0, count)]
    while parts:  # halves, in this very frame: a search that went deeper could fail where `mapped` does not
        first, last = parts.pop()
        try:
            found = mapped(*(row[first:last] for row in rows))
        except (RecursionError, MemoryError):
            raise
        except Exception:
            middle = (first + last) // 2
            good[first:last] = last - first > 1
            parts += [(first, middle), (middle, last)] if last - first > 1 else []
        else:
            if last - first == count:
                return found.clone()  # never the caller's own tensor
    if not bool(good.any()):
        return torch.full((count, *shape), torch.nan, dtype=dtype)
    stand_in = torch.where(good, torch.arange(count), good.long().argmax())
    result: Tensor = mapped(*(row[stand_in] for row in rows)).clone()
    result[~good] = torch.nan
    return result
