"""Copies of what an algorithm hands over and keeps, checked against the contract.

A tensor is copied by torch's own functions, unbound, and the copy is looked at: what is checked is what is
used, also where the algorithm writes to its own tensor later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.protocol.batch import Batch
from fedsim.protocol.plan import Ask
from fedsim.protocol.query import Query
from fedsim.protocol.statistics import statistic

MAX_ARRAYS = 16  # tensors of a broadcast, a message or memory at most
_BATCHES = get_args(get_args(Batch)[0])


def copied_queries(queries: tuple[Query, ...]) -> tuple[Ask, list[Query]]:
    """What answering `queries` together costs, and a copy of each; they share one draw, hence one batch.
    Refused for a value of another type than the contract's, or several batches.
    """
    taken = [_copied_query(query) for query in queries]
    if not taken or any(query.batch != queries[0].batch for query in queries):
        raise Refused("the queries of one ask must name one batch")
    return Ask(queries[0].batch, tuple(query.shape for query in taken)), taken


def _copied_query(query: Query) -> Query:
    _check(query, Query, "a query")
    _check(query.batch, _BATCHES, "batch")
    _check(query.points, tuple, "points of a query")
    _check(query.statistic, str, "statistic")
    statistic(query.statistic)
    points, clip = tuple(copied_tensor(point, "a point") for point in query.points), query.clip
    bound = copied_tensor(clip, "clip") if isinstance(clip, torch.Tensor) else _number(clip, "clip")
    _check(query.options, tuple, "options of a query")
    options = tuple(_number(option, "an option of a query") for option in query.options)
    ratio, transform = _number(query.noise_ratio, "noise_ratio"), None
    if query.transform is not None:
        transform = copied_tensor(query.transform, "a transform")
        if transform.dim() != 2 or 0 in transform.shape:
            raise Refused(f"a transform is {tuple(transform.shape)}; it must be a matrix (k, features)")
    h = None if query.h is None else _number(query.h, "h")
    return Query(query.statistic, points, bound, query.batch, ratio, options, transform, h)


def copied_tensor(value: object, what: str) -> Tensor:
    """A copy that nothing else refers to, without a graph."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_nested:
        raise Refused(f"{what} is {type(value).__name__}, not a plain tensor")
    return torch.Tensor.clone(torch.Tensor.detach(value))


def copied_arrays(arrays: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Copies of named tensors."""
    if not isinstance(arrays, Mapping):
        raise Refused(f"{what} is {type(arrays).__name__}, not named tensors")
    if len(arrays) > MAX_ARRAYS:
        raise Refused(f"{what} has {len(arrays)} tensors, more than {MAX_ARRAYS}")
    for name in arrays:
        _check(name, str, f"a name in {what}")
        if name.startswith("__"):
            raise Refused(f"{what} has a tensor named {name[:40]!r}; names must not begin with __")
    return {name: copied_tensor(value, f"{name!r} of {what}") for name, value in arrays.items()}


class CohortMemory(dict[str, Tensor]):
    """Named tensors (silos, d) that are zero until they are written, also as rows of another size."""

    def __init__(self, silos: int, dimension: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.silos, self._dimension, self._dtype = silos, dimension, dtype

    def __missing__(self, name: str) -> Tensor:
        return torch.zeros(self.silos, self._dimension, dtype=self._dtype)

    def select(self, members: list[int]) -> CohortMemory:
        """A copy of the rows of `members`, to work on until the reply is stored."""
        part = CohortMemory(len(members), self._dimension, self._dtype)
        part.update({name: value[members] for name, value in self.items()})
        return part

    def commit(self, members: list[int], part: CohortMemory) -> None:
        """Write the rows of `members` back, as copies; Refused if they are no plain tensors."""
        plain = copied_arrays(part, "memory")
        merged = {}
        for name, value in plain.items():
            old = self.get(name)
            merged[name] = value.new_zeros(self.silos, value.shape[-1]) if old is None else old.clone()
            merged[name][members] = value
        self.update(merged)  # all of it or, where a shape is wrong, nothing


def _number(value: object, what: str) -> float:
    """A float; NaN and infinity are floats, and for the limits to refuse."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise Refused(f"{what} is {type(value).__name__}, not a number (float)")
    try:
        return float(value)
    except OverflowError:
        raise Refused(f"{what} is larger than any float") from None


def _check(value: object, kind: type | tuple[type, ...], what: str) -> None:
    if not isinstance(value, kind):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise Refused(f"{what} is {type(value).__name__}, not {names}")


def digests(arrays: Mapping[str, Tensor], rows: int) -> list[bytes]:
    """`digest` of what each of `rows` receivers is sent: (d,) goes to all, (rows, d) a row to each."""
    if all(value.dim() == 1 for value in arrays.values()):
        return [digest(arrays)] * rows
    totals = [hashlib.sha256() for _ in range(rows)]
    for name in sorted(arrays):
        value = arrays[name].detach().cpu()
        values = value.expand(rows, value.shape[-1]).numpy()
        header = f"{len(name)}:{name}{value.dtype}{tuple(value.shape[-1:])}".encode()
        for total, row in zip(totals, values, strict=True):
            total.update(header + row.tobytes())
    return [total.digest() for total in totals]


def digest(arrays: Mapping[str, Tensor]) -> bytes:
    """SHA-256 over names, types, shapes and values in sorted order of names, 32 bytes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        value = arrays[name].detach().cpu()
        total.update(f"{len(name)}:{name}{value.dtype}{tuple(value.shape)}".encode())
        total.update(value.numpy().tobytes())
    return total.digest()
