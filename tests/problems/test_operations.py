"""No operation of the table lets a record reach another's value or gradient, in any form that it may have.

The cases are made of the table: a form without cases here, or a case that the table refuses, is an error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, permutations, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad

from fedsim.problems.capture import each
from fedsim.problems.operations import TABLE, Entry, NotAllowedError, outcome

ROWS, CHANGED = 5, 2
SHARE = 40  # one case of so many is in the gate


@dataclass(frozen=True)
class T:
    """A tensor that a case needs: `f` numbers, `b` truth values, or whole numbers from 0 to below an int."""

    shape: tuple[int, ...]
    kind: str | int = "f"


Case = tuple[tuple[Any, ...], dict[str, Any]]
SHAPES = [(), (1,), (3,), (5,), (1, 3), (2, 1), (5, 5), (2, 1, 3), (2, 2, 3, 2)]
TOGETHER = [
    *(((), ()), ((3,), ()), ((), (3,)), ((5,), (5,)), ((5,), (5, 5)), ((2, 3), (3,)), ((3,), (2, 3))),
    *(((2, 1), (1, 3)), ((1,), (2, 2, 3)), ((2, 2, 3), (2, 1, 3)), ((1, 1), (1,))),
]


def axes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    every = range(len(shape))
    return chain.from_iterable(combinations(every, count) for count in range(1, len(shape) + 1))


def _defaults(entry: Entry) -> tuple[Any, ...]:
    schema = entry.operation._schema.arguments[1:]
    return tuple(argument.default_value for argument in schema if not argument.kwarg_only)


def of_one(name: str, entry: Entry) -> Iterator[Case]:
    options = [{}, {"approximate": "tanh"}] if "approximate" in entry.options else [{}]
    return (((T(shape), *_defaults(entry)), own) for shape in SHAPES for own in options)


def of_signed(name: str, entry: Entry) -> Iterator[Case]:
    yield from of_one(name, entry)
    yield from (((T(shape, 9),), {}) for shape in SHAPES)


def converted(name: str, entry: Entry) -> Iterator[Case]:
    for shape, kind, dtype in product(SHAPES, ("f", "b", 9), (torch.float32, torch.int64, torch.bool)):
        yield (T(shape, kind),), {"dtype": dtype}


def of_truths(name: str, entry: Entry) -> Iterator[Case]:
    if len(entry.kinds) == 1:
        yield from (((T(shape, "b"),), {}) for shape in SHAPES)
    else:
        yield from (((T(one, "b"), T(two, "b")), {}) for one, two in TOGETHER)


def of_two(name: str, entry: Entry) -> Iterator[Case]:
    for options in [{}, {"alpha": 2}] if "alpha" in entry.options else [{}]:
        for (one, two), kind in product(TOGETHER, ("f", 9)):
            if kind == 9 and name in ("div.Tensor", "atan2.default", "pow.Tensor_Tensor"):
                continue
            second = T(two, kind) if not name.endswith("Scalar") else 2
            yield (T(one, kind), second), options
            if name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"):
                yield (T(one, kind), 3), options
                yield (3, T(two, kind)), options


def powers(name: str, entry: Entry) -> Iterator[Case]:
    return (((T(shape), power), {}) for shape in SHAPES for power in (-1, 0, 1, 2, 3, 0.5, 1.5))


def fixed_powers(name: str, entry: Entry) -> Iterator[Case]:
    return (((base, T(shape)), {}) for shape in SHAPES for base in (0, 1, 2, 0.5, -1.5))


def moduli(name: str, entry: Entry) -> Iterator[Case]:
    return (((T(shape, kind), 3), {}) for shape in SHAPES for kind in ("f", 9))


def bounds(name: str, entry: Entry) -> Iterator[Case]:
    for one, two in TOGETHER:
        if name == "clamp.default":
            yield from (((T(one), low, high), {}) for low, high in ((0, 1), (None, 0.5), (0.5, None)))
        else:
            yield from (((T(one), *own), {}) for own in ((T(two), None), (None, T(two)), (T(two), T(one))))


def chosen(name: str, entry: Entry) -> Iterator[Case]:
    for (one, two), kind in product(TOGETHER, ("f", 9, "b")):
        yield (T(one, "b"), T(two, kind), T(one, kind)), {}
        yield (T(two, "b"), T(one, kind), T((), kind)), {}


def over(name: str, entry: Entry, *more: tuple[Any, ...]) -> Iterator[Case]:
    for shape in SHAPES:
        for own, keep, before in product(axes(shape), (False, True), more or ((),)):
            if "correction" in entry.options:
                yield from (((T(shape), own), {"correction": c, "keepdim": keep}) for c in (0, 1))
            else:
                yield (T(shape), *before, own, keep), {}
                if entry.form in ("over axes", "numbers over axes"):
                    yield (T(shape, 9), *before, own, keep), {}


def norms(name: str, entry: Entry) -> Iterator[Case]:
    return over(name, entry, *((order,) for order in (1, 2, 3.0, float("inf"))))


def along(name: str, entry: Entry) -> Iterator[Case]:
    flags = [kind for kind in entry.kinds.values() if kind == "bool"]
    for shape in SHAPES:
        for axis, kind in product(range(len(shape)), ("f", 9)):
            if kind == "f" or entry.form == "along an axis":
                softmax = entry.form.startswith("floats")
                every = [(False,)] if softmax else product((False, True), repeat=len(flags))
                yield from (((T(shape, kind), axis, *own), {}) for own in every)


def largest(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES:
        for axis, most, order in product(range(len(shape)), (False, True), (False, True)):
            yield from (((T(shape), k, axis, most, order), {}) for k in {1, shape[axis]})


def matrices(name: str, entry: Entry) -> Iterator[Case]:
    for n, k, m in product((1, 2, 5), (1, 3, 5), (1, 2, 5)):
        if name == "mm.default":
            yield (T((n, k)), T((k, m))), {}
        else:
            yield from (((T(own), T((n, k)), T((k, m))), {}) for own in ((m,), (1,), (n, m), (n, 1), (1, m)))


def batches(name: str, entry: Entry) -> Iterator[Case]:
    return (((T((b, n, k)), T((b, k, m))), {}) for b, n, k, m in product((1, 2, 5), (1, 5), (1, 3), (1, 2)))


def convolutions(name: str, entry: Entry) -> Iterator[Case]:
    for n, turned, groups, bias, batch in product((1, 2, 3), (False, True), (1, 2), (False, True), (1, 2)):
        for stride, padding, dilation in ((1, 0, 1), (2, 1, 1), (1, 1, 2)):
            kernel = (4, 1) if turned and groups == 2 else (4, 4 // groups)
            outputs = kernel[1] * groups if turned else 4
            weight, add = T((*kernel, *(2,) * n)), T((outputs,)) if bias else None
            own = ((stride,) * n, (padding,) * n, (dilation,) * n, turned, (0,) * n, groups)
            yield (T((batch, 4, *(4, 3, 3)[:n])), weight, add, *own), {}


def pools(name: str, entry: Entry) -> Iterator[Case]:
    n = 3 if "3d" in name else 2
    for batch, (kernel, stride, padding), ceil in product(
        (1, 2), ((2, 2, 0), (2, 1, 1), (3, 2, 1)), (False, True)
    ):
        own = (kernel,) * n, (stride,) * n, (padding,) * n
        image = T((batch, 2, *(4,) * n))
        if name.startswith("avg"):
            yield from (((image, *own, ceil, count, d), {}) for count in (False, True) for d in (None, 3))
        else:
            yield from (
                ((image, *own, (dilation,) * n, ceil), {}) for dilation in (1, 2) if dilation == 1 or ceil
            )


def fixed_pools(name: str, entry: Entry) -> Iterator[Case]:
    return (
        ((T((b, 2, 4, 5)), size), {}) for b in (1, 2) for size in ((1, 1), (2, 2), (3, 2), (4, 5), (1, 3))
    )


def layer_norms(name: str, entry: Entry) -> Iterator[Case]:
    for shape in [(3,), (2, 3), (5, 5), (2, 1, 3), (1, 2, 2, 3)]:
        for count, scale, shift in product(range(1, len(shape) + 1), (False, True), (False, True)):
            own = shape[-count:]
            yield (T(shape), own, T(own) if scale else None, T(own) if shift else None, 1e-5), {}


def group_norms(name: str, entry: Entry) -> Iterator[Case]:
    for shape, size in (((1, 4), 1), ((2, 4, 3), 3), ((1, 4, 2, 3), 6), ((5, 4, 2), 2)):
        for group, own in product((1, 2, 4), ((None, None), (T((4,)), None), (T((4,)), T((4,))))):
            yield (T(shape), *own, shape[0], 4, size, group, 1e-5), {}


def sizes(name: str, entry: Entry) -> Iterator[Case]:
    lists = {
        "reshape.default": [
            *(((), (1,)), ((1,), ()), ((1, 1), ()), ((6,), (2, 3)), ((2, 3), (6,)), ((2, 3), (3, 2))),
            *(((5, 1), (1, 5)), ((5, 5), (25,)), ((25,), (5, 5)), ((2, 1, 3), (1, 6, 1)), ((3,), (3,))),
        ],
        "expand.default": [
            *(((), (3,)), ((), (2, 3)), ((1,), (5,)), ((3,), (2, 3)), ((5,), (5, 5)), ((1, 3), (4, 3))),
            *(((2, 1), (2, 5)), ((1, 1), (3, 2, 5)), ((3,), (3,))),
        ],
        "repeat.default": [
            *(((3,), (2,)), ((1,), (5,)), ((2, 3), (1, 2)), ((2, 3), (5, 1)), ((5, 5), (1, 1))),
            ((2, 1, 3), (1, 2, 3)),
        ],
    }
    return (((T(shape, kind), own), {}) for shape, own in lists[name] for kind in ("f", 9, "b"))


def orders(name: str, entry: Entry) -> Iterator[Case]:
    return (((T(shape), order), {}) for shape in SHAPES for order in permutations(range(len(shape))) if shape)


def of_axes(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES:
        if name == "flip.default":
            yield from (((T(shape, kind), own), {}) for own in axes(shape) for kind in ("f", 9, "b"))
        else:
            pairs = permutations(range(len(shape)), 2)
            yield from (((T(shape), offset, *pair), {}) for pair in pairs for offset in (-1, 0, 1)
                        if -shape[pair[0]] < offset < shape[pair[1]])  # fmt: skip


def paddings(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        for count, pad, value in product(range(1, len(shape) + 1), ((1, 2), (0, 1), (0, 0)), (0, -2.5)):
            yield (T(shape), pad * count, value), {}


def fixed_places(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        for axis, size in enumerate(shape):
            if name == "select.int":
                yield from (((T(shape), axis, place), {}) for place in {0, size - 1})
                continue
            for start, end, step in {(0, size, 1), (size - 1, size, 1), (0, size, 2), (0, 1, 1)}:
                count = len(range(start, end, step))
                source = (T((*shape[:axis], count, *shape[axis + 1 :])),) if "src" in entry.kinds else ()
                yield (T(shape), *source, axis, start, end, step), {}


def joined(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        for axis, count in product(range(len(shape)), (1, 2, 3)):
            yield (tuple(T((*shape[:axis], 1 + k, *shape[axis + 1 :])) for k in range(count)), axis), {}


def looked_up(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        yield from (
            ((T(shape), axis, T((n,), shape[axis])), {}) for axis in range(len(shape)) for n in (1, 4)
        )


def gathered(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        for axis, n in product(range(len(shape)), (1, 4)):
            index = (*shape[:axis], n, *shape[axis + 1 :])
            yield (T(shape), axis, T(index, shape[axis])), {}
            yield (T(shape), axis, T((1,) * len(shape), shape[axis])), {}


def indexed(name: str, entry: Entry) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        for used in product((False, True), repeat=len(shape)):
            if any(used):
                for index in ((), (4,), (2, 2), (1, 5)):
                    yield (
                        (
                            T(shape),
                            tuple(T(index, n) if u else None for u, n in zip(used, shape, strict=True)),
                        ),
                        {},
                    )
        if len(shape) > 1:
            yield (T(shape), (T((4, 1), shape[0]), T((3,), shape[1]))), {}


CASES: dict[str, Callable[[str, Entry], Iterator[Case]]] = {
    "any tensor": of_signed,
    "converted to a type": converted,
    "numbers": of_signed,
    "floats": of_one,
    "truth values": of_truths,
    "two that broadcast": of_two,
    "two of floats that broadcast": of_two,
    "a fixed power of floats": powers,
    "a power of a fixed number": fixed_powers,
    "modulo a positive number": moduli,
    "between bounds": bounds,
    "chosen by truth values": chosen,
    "over axes": over,
    "numbers over axes": over,
    "floats over axes": over,
    "norm over axes": norms,
    "along an axis": along,
    "floats along an axis": along,
    "the largest along an axis": largest,
    "matrices": matrices,
    "batches of matrices": batches,
    "images and kernels": convolutions,
    "images": pools,
    "images of a fixed size": fixed_pools,
    "normalised over the last axes": layer_norms,
    "normalised in groups of channels": group_norms,
    "sizes": sizes,
    "axes in another order": orders,
    "axes": of_axes,
    "padded": paddings,
    "a fixed place": fixed_places,
    "joined along an axis": joined,
    "looked up": looked_up,
    "gathered": gathered,
    "indexed": indexed,
}


def _places(arguments: tuple[Any, ...]) -> list[T]:
    return [
        own
        for each in arguments
        for own in (each if isinstance(each, tuple) else (each,))
        if isinstance(own, T)
    ]


def _filled(arguments: tuple[Any, ...], tensors: Iterator[Any]) -> list[Any]:
    def one(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(one(each) for each in argument)
        return next(tensors) if isinstance(argument, T) else argument

    return [one(argument) for argument in arguments]


@cache
def every_case() -> list[tuple[str, Case, tuple[bool, ...]]]:
    """Each form of each operation, with every choice of tensors that are a record's."""
    return [
        (name, case, own)
        for name, entry in TABLE.items()
        if name != "getitem"
        for case in CASES[entry.form](name, entry)
        for own in product((True, False), repeat=len(_places(case[0])))
        if any(own)
    ]


def _made(want: T, rows: int | None, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    shape = want.shape if rows is None else (rows, *want.shape)
    if want.kind == "f":
        return torch.randn(shape, dtype=dtype, generator=generator)
    made = torch.randint(2 if want.kind == "b" else int(want.kind), shape, generator=generator)
    return made.bool() if want.kind == "b" else made


EXTREMES = [float("nan"), float("inf"), -float("inf"), -1e30, 0.0, -3.0]


def _wild(row: Tensor) -> Tensor:
    """Values that no other row has; places that are no places among them."""
    if row.dtype == torch.bool:
        return ~row
    if row.dtype == torch.int64:
        return row + 1000 if row.numel() % 2 else -row - 7
    values = torch.tensor(EXTREMES, dtype=row.dtype).repeat(1 + row.numel() // len(EXTREMES))
    return values[: row.numel()].view(row.shape)


def run(name: str, case: Case, own: tuple[bool, ...], dtype: torch.dtype) -> None:
    """Raises unless all rows but the changed one keep their values and gradients, bit for bit."""
    arguments, options = case
    generator = torch.Generator().manual_seed(0)
    places = _places(arguments)
    made = [_made(p, ROWS if o else None, dtype, generator) for p, o in zip(places, own, strict=True)]
    metas = [torch.empty(p.shape, dtype=m.dtype, device="meta") for p, m in zip(places, made, strict=True)]
    outcome(name, _filled(arguments, iter(metas)), options)

    def evaluated(*rows: Tensor) -> Tensor:
        records = iter(rows)
        tensors = [next(records) if o else value for o, value in zip(own, made, strict=True)]
        floats = [i for i, tensor in enumerate(tensors) if tensor.is_floating_point()]

        def weighed(*values: Tensor) -> tuple[Tensor, list[Tensor]]:
            given = list(tensors)
            for i, value in zip(floats, values, strict=True):
                given[i] = value
            found = TABLE[name].operation(*_filled(arguments, iter(given)), **options)
            results = [found] if isinstance(found, Tensor) else list(found)
            loss = sum(
                ((each * torch.arange(1.0, 1 + each.numel(), dtype=each.dtype).view(each.shape)).sum()
                 for each in results if each.is_floating_point()), start=torch.zeros((), dtype=dtype),
            )  # fmt: skip
            return loss, [each.double().reshape(-1) for each in results]

        if not floats:
            return torch.cat(weighed()[1])
        inputs = [tensors[i] for i in floats]
        slopes, results = grad(weighed, argnums=tuple(range(len(floats))), has_aux=True)(*inputs)
        return torch.cat([*results, *(slope.double().reshape(-1) for slope in slopes)])

    records = [value for o, value in zip(own, made, strict=True) if o]
    first = evaluated(*(value[0] for value in records))
    before = each(evaluated, tuple(first.shape), torch.float64, *records, tile=8)
    assert torch.allclose(before[0], first, rtol=1e-3, atol=1e-3, equal_nan=True), "not the operation itself"
    changed = [value.clone() for value in records]
    for value in changed:
        value[CHANGED] = _wild(value[CHANGED])
    after = each(evaluated, tuple(first.shape), torch.float64, *changed, tile=8)
    others = torch.arange(ROWS) != CHANGED
    assert torch.allclose(before[others], after[others], rtol=0, atol=0, equal_nan=True), (
        "a row reached another"
    )


def _failures(cases: list[tuple[str, Case, tuple[bool, ...]]]) -> list[str]:
    found = []
    for i, (name, case, own) in enumerate(cases):
        try:
            run(name, case, own, (torch.float64, torch.float32)[i % 2])
        except (AssertionError, RuntimeError, ValueError, NotImplementedError) as error:
            found.append(f"{name} {case} {own}: {str(error)[:90]}")
    return found


def test_no_form_lets_a_row_reach_another_in_a_sample_of_all() -> None:
    """Every operation is in the sample."""
    seen: dict[str, int] = {}
    sample = []
    for case in every_case():
        seen[case[0]] = seen.get(case[0], -1) + 1
        if seen[case[0]] % SHARE == seen[case[0]] // SHARE % 7:
            sample.append(case)
    assert {name for name, _, _ in sample} == set(TABLE) - {"getitem"}
    assert not _failures(sample)


@pytest.mark.slow
def test_no_form_lets_a_row_reach_another() -> None:
    assert len(every_case()) > 7000
    assert not _failures(every_case())


@pytest.mark.parametrize("mixing", [lambda x: torch.roll(x, 1), lambda x: x + torch.roll(x.detach(), 1)])
def test_the_search_finds_an_operation_that_mixes_rows(mixing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own rule for `roll` of a number without axes rolls the rows."""
    monkeypatch.setitem(TABLE, "mixing", Entry(mixing, "any tensor", {"self": "Tensor"}))
    assert _failures([("mixing", ((T(()),), {}), (True,))])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("flip.default", (T((3,)), ())),
        ("flip.default", (T((3,)), (-1,))),
        ("flip.default", (T((2, 3)), (0, 0))),
        ("sum.dim_IntList", (T((3,)), (), False)),
        ("sum.dim_IntList", (T((3,)), None, False)),
        ("sum.dim_IntList", (T(()), (0,), False)),
        ("cumsum.default", (T(()), 0)),
        ("cumsum.default", (T((3,)), -1)),
        ("sort.default", (T((3,)), -1, False)),
        ("max.dim", (T(()), 0, False)),
        ("_softmax.default", (T(()), 0, False)),
        ("topk.default", (T((3,)), 4, 0, True, True)),
        ("remainder.Scalar", (T((3,), 9), 0)),
        ("remainder.Scalar", (T((3,), 9), -1)),
        ("add.Tensor", (T((3,)), T((3,), 9))),
        ("mul.Tensor", (T((3,), 9), 0.5)),
        ("cat.default", ((T((3,)), T((2, 3))), 0)),
        ("cat.default", ((), 0)),
        ("select.int", (T((3,)), 0, 3)),
        ("select.int", (T((3,)), 0, -1)),
        ("slice.Tensor", (T((3,)), 0, 0, 9, 1)),
        ("reshape.default", (T((2, 3)), (-1,))),
        ("expand.default", (T((1,)), (-1, 3))),
        ("permute.default", (T((2, 3)), (-1, 0))),
        ("native_group_norm.default", (T((1, 4, 3)), None, None, 2, 4, 3, 2, 1e-5)),
        ("native_group_norm.default", (T((1, 4, 3)), None, None, 1, 4, 30, 2, 1e-5)),
        ("native_group_norm.default", (T((1, 4)), None, T((4,)), 1, 4, 1, 2, 1e-5)),
        ("native_layer_norm.default", (T((2, 3)), (2,), None, None, 1e-5)),
        ("index.Tensor", (T((3,)), (T((3,), "b"),))),
        ("gather.default", (T((3, 2)), 0, T((1, 3), 3))),
        ("convolution.default", (T((2, 4)), T((2, 2, 1)), None, (1,), (0,), (1,), False, (0,), 1)),
        ("expand.default", (T(()), (10**9,))),
        ("roll.default", (T((3,)), (1,), (0,))),
        ("empty.memory_format", ((3,),)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_outside_its_form_is_refused_by_name(name: str, arguments: tuple[Any, ...]) -> None:
    made = {"f": torch.float64, "b": torch.bool}
    metas = (
        torch.empty(p.shape, dtype=made.get(str(p.kind), torch.int64), device="meta")
        for p in _places(arguments)
    )
    with pytest.raises(NotAllowedError, match=name.replace(".", r"\.")):
        outcome(name, _filled(arguments, metas), {})
