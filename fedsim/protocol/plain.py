"""What an algorithm hands over, checked against the contract and copied.

A tensor is copied by torch's own functions, unbound, and the copy is looked at: what is checked is what is
used, also where the algorithm writes to its own tensor later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch

from fedsim.common.errors import Refused
from fedsim.protocol.batch import Batch
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, QueryShape

if TYPE_CHECKING:
    from torch import Tensor

_BATCHES = get_args(get_args(Batch)[0])


class PlainQuery(NamedTuple):
    """A query: what sets its cost, copies of its points, and its clip."""

    shape: QueryShape
    points: tuple[Tensor, ...]
    clip: float | Tensor


def plain_queries(queries: tuple[Query, ...]) -> tuple[Ask, list[PlainQuery]]:
    """What answering `queries` together costs, and each of them; they share one draw, hence one batch.

    Raises:
        Refused: a value of another type than the contract's, or several batches.
    """
    taken = [_plain_query(query) for query in queries]
    if not taken or any(query.batch != queries[0].batch for query in queries):
        raise Refused("the queries of one ask must name one batch")
    return Ask(queries[0].batch, tuple(query.shape for query in taken)), taken


def _plain_query(query: Query) -> PlainQuery:
    _check(query, Query, "a query")
    _check(query.batch, _BATCHES, "batch")
    _check(query.points, tuple, "points of a query")
    _check(query.statistic, str, "statistic")
    points, clip = tuple(plain_tensor(point, "a point") for point in query.points), query.clip
    bound = plain_tensor(clip, "clip") if isinstance(clip, torch.Tensor) else _number(clip, "clip")
    shape = QueryShape(query.statistic, len(points), _number(query.noise_ratio, "noise_ratio"))
    return PlainQuery(shape, points, bound)


def plain_tensor(value: object, what: str) -> Tensor:
    """A copy that nothing else refers to, without a graph."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_nested:
        raise Refused(f"{what} is {type(value).__name__}, not a plain tensor")
    return torch.Tensor.clone(torch.Tensor.detach(value))


def plain_arrays(arrays: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Copies of named tensors."""
    if not isinstance(arrays, Mapping):
        raise Refused(f"{what} is {type(arrays).__name__}, not named tensors")
    for name in arrays:
        _check(name, str, f"a name in {what}")
    return {name: plain_tensor(value, f"{name!r} of {what}") for name, value in arrays.items()}


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
