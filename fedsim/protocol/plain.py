"""What code of others hands over, as plain values of our own, taken once.

What is checked must be what is used. An object that answers for itself may answer differently the second
time: a subclass with properties or operators of its own, a sequence that changes, a tensor that another
thread writes to. So values are taken by exact type, each container is read once, tensors are copied before
anything looks at them, and no operator of a stranger's object is ever called. Whatever is of another type is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedsim.common.errors import Refused
from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, Plan, QueryShape

if TYPE_CHECKING:
    from torch import Tensor

_FRACTIONS: tuple[type[Subsample | WithReplacement | Poisson | Fresh], ...] = (
    Subsample,
    WithReplacement,
    Poisson,
    Fresh,
)


class PlainQuery(NamedTuple):
    """A query in plain values: what sets its cost, copies of its points, and its clip."""

    shape: QueryShape
    points: tuple[Tensor, ...]
    clip: float | Tensor


def plain_queries(queries: tuple[Query, ...]) -> tuple[Ask, list[PlainQuery]]:
    """What answering `queries` together costs, and each of them; they share one draw, hence one batch.

    Raises:
        Refused: a value of another type than the contract's, or several batches.
    """
    taken = [_plain_query(query) for query in queries]
    if not taken or any(batch != taken[0][0] for batch, _ in taken):
        raise Refused("the queries of one ask must name one batch")
    return Ask(taken[0][0], tuple(query.shape for _, query in taken)), [query for _, query in taken]


def _plain_query(query: Query) -> tuple[Batch, PlainQuery]:
    _exactly(query, Query, "a query")
    batch, clip = plain_batch(query.batch), query.clip
    points = tuple(plain_tensor(p, "a point") for p in _exactly(query.points, tuple, "points of a query"))
    is_number = type(clip) is float or type(clip) is int
    bound = plain_number(clip, "clip") if is_number else plain_tensor(clip, "clip")
    ratio = plain_number(query.noise_ratio, "noise_ratio")
    shape = QueryShape(_exactly(query.statistic, str, "statistic"), len(points), ratio)
    return batch, PlainQuery(shape, points, bound)


def plain_tensor(value: object, what: str) -> Tensor:
    """A copy that nobody else holds, without a graph."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_nested:
        raise Refused(f"{what} is {type(value).__name__}, not a plain tensor")
    return value.detach().clone()


def plain_arrays(arrays: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Named tensors in a mapping of our own, which is read once."""
    try:
        pairs = list(arrays.items())
    except AttributeError:
        raise Refused(f"{what} is {type(arrays).__name__}, not named tensors") from None
    return {_exactly(n, str, f"a name in {what}"): plain_tensor(v, f"{n!r} of {what}") for n, v in pairs}


def plain_number(value: object, what: str) -> float:
    """A float; NaN and infinity are floats, and for the limits to refuse."""
    if type(value) is not float and type(value) is not int:
        raise Refused(f"{what} is {type(value).__name__}, not a number (float)")
    try:
        return float(value)
    except OverflowError:
        raise Refused(f"{what} is larger than any float") from None


def plain_positions(values: Sequence[int], what: str) -> Sequence[int]:
    """Whole numbers in a sequence that does not change; a range stays one."""
    if type(values) is range:
        return values
    return tuple(_exactly(value, int, what) for value in values)


def plain_batch(batch: object) -> Batch:
    """The same batch, built anew, so that its fraction has been checked."""
    kind = type(batch)
    if kind is Full:
        return FULL
    for sampler in _FRACTIONS:
        if kind is sampler:
            try:
                return sampler(plain_number(batch.fraction, "batch.fraction"))  # type: ignore[attr-defined]
            except ValueError as error:
                raise Refused(str(error)) from None
    raise Refused(f"batch is {kind.__name__}, which nobody can price")


def plain_plan(plan: Plan) -> Plan:
    """The same plan, built anew; rounds that are one object stay one."""
    rounds = _exactly(_exactly(plan, Plan, "a plan").rounds, tuple, "rounds of a plan")
    known: dict[int, tuple[Ask, ...]] = {}
    return Plan(tuple(known.get(id(asks)) or known.setdefault(id(asks), _asks(asks)) for asks in rounds))


def _asks(asks: object) -> tuple[Ask, ...]:
    return tuple(_plain_ask(ask) for ask in _exactly(asks, tuple, "a round of a plan"))


def _plain_ask(ask: object) -> Ask:
    _exactly(ask, Ask, "an ask of a plan")
    queries = _exactly(ask.queries, tuple, "queries of a plan")  # type: ignore[attr-defined]
    if not queries:
        raise Refused("an ask of the plan has no query")
    return Ask(plain_batch(ask.batch), tuple(_plain_shape(query) for query in queries))  # type: ignore[attr-defined]


def _plain_shape(shape: object) -> QueryShape:
    _exactly(shape, QueryShape, "a query of a plan")
    statistic, points, ratio = shape.statistic, shape.points, shape.noise_ratio  # type: ignore[attr-defined]
    return QueryShape(
        _exactly(statistic, str, "statistic"),
        _exactly(points, int, "the number of points"),
        plain_number(ratio, "noise_ratio"),
    )


def _exactly(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise Refused(f"{what} is {type(value).__name__}, not {kind.__name__}")
    return value
