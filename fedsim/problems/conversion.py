"""From torch's graph of a function to a program: few operations, everything about them written out.

Axes count from the front, none is left to a default; both sides of a sum have one type; sizes are those of
this graph; what only looks at a shape is a `reshape`; what depends on no record is a constant. Memory that
nothing was written to is given as zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fedsim.problems.operations import TABLE, NotAllowedError, Values, aten, check_result, outcome
from fedsim.problems.program import Program, Step, Value

Bound = dict[str, Any]  # an operation's arguments by name, with defaults; values in place of nodes

Rewrite = Callable[["_Writer", Bound, Any], Any]  # (writer, arguments, torch's result) to a value


def converted(nodes: Sequence[Node], inputs: Sequence[str | Tensor | None]) -> Program:
    """A graph's nodes as a program; NotAllowedError for an operation that a record must not be given to.
    `inputs` says what each placeholder stands for: a parameter's name, a constant, or None for one of the
    record's tensors.
    """
    writer, values, pending = _Writer(), dict[Node, Any](), iter(inputs)
    for node in nodes:
        if node.op == "placeholder":
            values[node] = writer.hold(next(pending), _meta(node.meta["val"]))
        elif node.op == "call_function":
            try:
                values[node] = _added(writer, node, values)
            except NotAllowedError:
                raise
            except Exception as error:  # what torch, or a rewrite, says to arguments that none expects
                hint = f"its operation {node.target} cannot be applied: {type(error).__name__}"
                raise NotAllowedError(hint) from None
        elif node.op == "output":
            (output,) = _filled(node.args[0], values)
            if isinstance(output, Value):
                return writer.program(output)
    raise NotAllowedError("its result must be one tensor")


class _Writer:
    """A program that is being written: what each value is, and its shape and type."""

    def __init__(self) -> None:
        self._held: list[tuple[str | Tensor | Step | None, Values]] = []

    def hold(self, what: str | Tensor | Step | None, meta: Values) -> Value:
        """A value that is a parameter, a constant, a step, or one of the record's tensors."""
        self._held.append((what, meta))
        return Value(len(self._held) - 1)

    def meta(self, value: Value) -> Any:
        """Shape and type."""
        return self._held[value.number][1]

    def constant(self, tensor: Tensor) -> Value:
        """A value that depends on nothing."""
        return self.hold(tensor, _meta(tensor))

    def apply(self, name: str, *arguments: Any, **options: Any) -> Value:
        """Add a step with an operation of the table; returns its result."""
        metas = [_filled(each, self.meta) for each in arguments]
        return self.hold(Step(name, arguments, options), outcome(name, metas, options))

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        """A value as another type; numbers stay as they are."""
        if not isinstance(x, Value) or self.meta(x).dtype is dtype:
            return x
        return self.apply("_to_copy.default", x, dtype=dtype)

    def shaped(self, x: Value, shape: Sequence[int]) -> Value:
        """The same numbers in another shape."""
        return x if self.meta(x).shape == tuple(shape) else self.apply("reshape.default", x, tuple(shape))

    def spread(self, x: Value, shape: Sequence[int]) -> Value:
        """Repeated to a shape that it broadcasts to."""
        return x if self.meta(x).shape == tuple(shape) else self.apply("expand.default", x, tuple(shape))

    def program(self, output: Value) -> Program:
        """The program of everything that the output needs, with all of the record's tensors."""
        needed = {output.number}
        for number in range(output.number, -1, -1):
            what = self._held[number][0]
            if number in needed and isinstance(what, Step):
                _filled(list(what.arguments), lambda value: needed.add(value.number))
        needed |= {n for n, (what, _) in enumerate(self._held) if what is None}
        kinds = [
            [n for n in sorted(needed) if isinstance(self._held[n][0], kind)]
            for kind in (str, type(None), Tensor, Step)
        ]
        place = {number: i for i, number in enumerate(n for kind in kinds for n in kind)}
        parameters, record, constants, steps = ([self._held[n] for n in kind] for kind in kinds)
        return Program(
            tuple((str(name), tuple(meta.shape), meta.dtype) for name, meta in parameters),  # type: ignore[union-attr]
            tuple((tuple(meta.shape), meta.dtype) for _, meta in record),  # type: ignore[union-attr]
            tuple(what for what, _ in constants if isinstance(what, Tensor)),
            tuple(
                Step(what.operation, _filled(what.arguments, lambda v: Value(place[v.number])), what.options)
                for what, _ in steps
                if isinstance(what, Step)
            ),
            place[output.number],
        )


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def _filled(argument: Any, values: Any) -> Any:
    """Nodes and references replaced by what `values` has for them; lists as tuples."""
    if isinstance(argument, Node | Value):
        return values[argument] if isinstance(values, dict) else values(argument)
    if isinstance(argument, list | tuple):
        return tuple(_filled(each, values) for each in argument)
    return argument


def _added(writer: _Writer, node: Node, values: dict[Node, Any]) -> Any:
    target, own = node.target, _filled(node.args, values)
    if target is operator.getitem:
        return own[0][own[1]] if isinstance(own[0], tuple) else writer.apply("getitem", *own)
    if target not in _REWRITES and target not in _NAMES:
        hint = f"its operation {target} is not on the list of those that act on one record alone"
        raise NotAllowedError(hint)
    schema = target._schema.arguments  # type: ignore[union-attr]
    a: Bound = {each.name: each.default_value for each in schema}
    a |= dict(zip(a, own, strict=False)) | _filled(dict(node.kwargs), values)
    if target in _REWRITES:
        return _REWRITES[target](writer, a, node.meta.get("val"))
    return _written(writer, _NAMES[target], a, node.meta["val"])


_SAYS_NOTHING = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit", "stable")
_ONE_TYPE = {
    *("floats", "two that broadcast", "two of floats that broadcast", "a fixed power of floats"),
    *("a power of a fixed number", "between bounds", "chosen by truth values", "joined along an axis"),
    *("floats over axes", "floats along an axis", "norm over axes", "normalised over the last axes"),
}
"""Forms whose tensors are converted to the type in which torch computes."""
_OVER_ALL = ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dims")
"""Reductions that leave a single number as it is."""


def _written(writer: _Writer, name: str, a: Bound, given: Any) -> Value:
    entry = TABLE[name]
    defaults = {each.name: each.default_value for each in entry.operation._schema.arguments}  # type: ignore[attr-defined]
    for argument, value in a.items():
        if argument not in (*entry.kinds, *_SAYS_NOTHING) and value != defaults.get(argument):
            raise NotAllowedError(f"its operation {name} is given {argument}, which must be left out")
    rank = next(writer.meta(value).dim() for value in _values(a))
    for argument in ("dim", "dims", "dim1", "dim2"):
        if argument in a:
            a[argument] = _from_the_front(a[argument], rank, defaults.get(argument, ()))
    single = a.get("dim") == () and rank == 0 and name in _OVER_ALL
    if single and writer.meta(a["self"]).dtype is given.dtype:
        return a["self"]  # type: ignore[no-any-return]
    if a.get("stride") in ((), []):
        a["stride"] = a["kernel_size"]
    if entry.form in _ONE_TYPE:
        _to_one_type(writer, a, given)
    arguments = [_filled(a[each], lambda v: v) for each in entry.kinds if each not in entry.options]
    options = {each: a[each] for each in entry.options if a[each] != defaults[each]}
    return writer.apply(name, *arguments, **options)


def _values(a: Bound) -> list[Value]:
    nested = (value if isinstance(value, tuple) else (value,) for value in a.values())
    return [each for values in nested for each in values if isinstance(each, Value)]


def _from_the_front(axes: Any, rank: int, default: Any) -> Any:
    """Axes counted from the front; all of them where none are named and an operation then takes all."""
    if type(axes) is int:
        return axes + rank if -rank <= axes < 0 else axes
    if not axes and default != ():
        return tuple(range(rank))
    return tuple(_from_the_front(axis, rank, None) for axis in axes)


def _to_one_type(writer: _Writer, a: Bound, given: Any) -> None:
    first = given if isinstance(given, Tensor) else given[0]
    others = {name: value for name, value in a.items() if name != "condition"}
    types = [writer.meta(each).dtype for each in _values(others)]
    want = first.dtype
    if want is torch.bool:
        want = types[0]
        for each in types[1:]:
            want = torch.promote_types(want, each)
        want = torch.int64 if want is torch.bool and "condition" not in a else want
        want = torch.float64 if want is torch.int64 and type(a.get("other")) is float else want
    for name, value in others.items():
        several = isinstance(value, tuple)
        a[name] = tuple(writer.cast(v, want) for v in value) if several else writer.cast(value, want)


def _full(writer: _Writer, a: Bound, given: Any) -> Any:
    check_result("full.default", given)
    value: Any = a.get("fill_value", a.get("s", 0))
    return writer.spread(writer.constant(torch.full((), value, dtype=given.dtype)), given.shape)


def _arange(writer: _Writer, a: Bound, given: Any) -> Any:
    check_result("arange.start_step", given)
    return writer.constant(torch.arange(a["start"], a["end"], a["step"], dtype=given.dtype))


def _eye(writer: _Writer, a: Bound, given: Any) -> Any:
    check_result("eye.default", given)
    return writer.constant(torch.eye(*given.shape, dtype=given.dtype))


def _named(name: str) -> Rewrite:
    """The same as another operation, in all that the other is given."""
    return lambda writer, a, given: _written(writer, name, a, given)


def _over(name: str) -> Rewrite:
    """Over the axes that are named, or over all."""

    def rewrite(writer: _Writer, a: Bound, given: Any) -> Any:
        axes = a.get("dim", ())
        axes = (axes,) if type(axes) is int else axes
        return _written(writer, name, {"keepdim": False} | a | {"dim": axes}, given)

    return rewrite


def _negated(writer: _Writer, a: Bound, given: Any) -> Any:
    if writer.meta(a["self"]).dtype is torch.bool:
        return writer.apply("logical_not.default", a["self"])
    if given.dtype is not torch.bool:
        raise NotAllowedError("it works on the bits of whole numbers")
    return writer.apply("eq.Scalar", a["self"], 0)


def _slice(writer: _Writer, a: Bound, given: Any) -> Any:
    x = a["self"]
    dim = _from_the_front(a["dim"], writer.meta(x).dim(), None)
    size = writer.meta(x).shape[dim]
    start, end, step = slice(a["start"], a["end"], a["step"]).indices(size)
    place = dim, start, end, step
    if "src" in a:
        return writer.apply("slice_scatter.default", x, writer.cast(a["src"], given.dtype), *place)
    return x if place[1:] == (0, size, 1) else writer.apply("slice.Tensor", x, *place)


def _product(writer: _Writer, a: Bound, given: Any) -> Any:
    """A product, of truth values too, as torch's own `isfinite` has it."""
    return _written(writer, "logical_and.default" if given.dtype is torch.bool else "mul.Tensor", a, given)


def _select(writer: _Writer, a: Bound, given: Any) -> Any:
    size = writer.meta(a["self"]).shape[a["dim"]]
    return _written(writer, "select.int", a | {"index": _from_the_front(a["index"], size, None)}, given)


def _repeat(writer: _Writer, a: Bound, given: Any) -> Any:
    x, repeats = a["self"], tuple(a["repeats"])
    shape = tuple(writer.meta(x).shape)
    padded = writer.shaped(x, (1,) * (len(repeats) - len(shape)) + shape)
    return writer.apply("repeat.default", padded, repeats)


def _parts(writer: _Writer, a: Bound, given: Any) -> Any:
    ends = [sum(a["split_sizes"][: i + 1]) for i in range(len(a["split_sizes"]))]
    cuts = zip([0, *ends], ends, strict=False)
    return tuple(_slice(writer, a | {"start": start, "end": end, "step": 1}, given) for start, end in cuts)


_NAMES: dict[Any, str] = {entry.operation: name for name, entry in TABLE.items() if name != "getitem"}

_REWRITES: dict[Any, Rewrite] = {
    operation: how
    for names, how in (
        ("clone.default alias.default lift_fresh_copy.default contiguous.default", lambda w, a, _: a["self"]),
        ("_assert_tensor_metadata.default _assert_async.default _assert_async.msg", lambda w, a, _: None),
        (
            "view.default _unsafe_view.default squeeze.default squeeze.dim squeeze.dims unsqueeze.default",
            lambda w, a, given: w.shaped(a["self"], given.shape),
        ),
        ("full.default full_like.default scalar_tensor.default empty.memory_format", _full),
        ("arange.start_step", _arange),
        ("eye.default eye.m", _eye),
        ("_to_copy.default", lambda w, a, given: w.cast(a["self"], given.dtype)),
        ("copy.default", lambda w, a, given: w.spread(w.cast(a["src"], given.dtype), given.shape)),
        *((f"{name}.Scalar", _named(f"{name}.Tensor")) for name in ("add", "sub", "mul", "div")),
        *((f"{name}.default", _over(f"a{name}.default")) for name in ("max", "min")),
        *((f"bitwise_{name}.Tensor", _named(f"logical_{name}.default")) for name in ("and", "or", "xor")),
        ("bitwise_not.default logical_not.default", _negated),
        ("sort.stable", _named("sort.default")),
        ("mul.Tensor", _product),
        ("mean.default", _over("mean.dim")),
        ("any.default any.dim any.dims", _over("any.dims")),
        ("slice.Tensor slice_scatter.default", _slice),
        ("select.int", _select),
        ("split_with_sizes.default", _parts),
        ("repeat.default", _repeat),
    )
    for operation in map(aten, names.split())
}
"""Operations that are written as others."""
