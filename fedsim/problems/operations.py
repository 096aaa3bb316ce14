"""The operations that a program of one record may hold, and the forms of their arguments.

Under `vmap` such an operation treats every record by itself, whatever the values are; a test makes its cases
of this table and changes one record in each. What is not here may not: operations that draw, since how much
they draw can depend on a record; backward passes and look-ups that trust their indices, and so reach into
the next record; those that give memory nothing was written to; batching rules that take the records' axis
for one of a record's (`roll` without axes). Axes are written out and count from the front, for the same
reason. Operations are those that torch itself had when this module was imported.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bool": torch.bool}
LOOK_UPS = ("index_select.default", "gather.default", "index.Tensor")  # which raise for a place outside
LARGEST = 10**8  # numbers that one tensor may hold

Arguments = Mapping[str, Any]
Values = Tensor | tuple[Tensor, ...]


class NotCapturedError(ValueError):
    """Why a function has no graph of one record."""


class NotAllowedError(NotCapturedError):
    """Why a record must not be given to an operation."""


@dataclass(frozen=True)
class Entry:
    """An operation, the names of its arguments (positional, except `options`), and their form."""

    operation: Callable[..., Any]
    form: str
    kinds: Mapping[str, str]
    options: tuple[str, ...] = ()


def _floats(a: Arguments) -> bool:
    return bool(_first(a).is_floating_point())


def _numbers(a: Arguments) -> bool:
    return _first(a).dtype != torch.bool


def _alike(a: Arguments) -> bool:
    return len({each.dtype for each in _tensors(a)}) == 1


def _pair(a: Arguments) -> bool:
    """Two of one type, or a tensor and a number of its type."""
    x = _first(a)
    numbers = [value for name, value in a.items() if name in ("self", "other") and type(value) in _PLAIN]
    whole = all(type(value) is int for value in (*numbers, a.get("alpha", 1)))
    return len(numbers) < 2 and _alike(a) and _numbers(a) and (x.is_floating_point() or whole)


def _matrices(a: Arguments) -> bool:
    ranks = {"self": 2, "mat1": 2, "mat2": 2}
    if "mat1" in a:
        ranks["self"] = min(2, max(1, a["self"].dim()))
    return all(a[name].dim() == rank for name, rank in ranks.items() if name in a)


def _convolution(a: Arguments) -> bool:
    axes, bias = len(a["stride"]), a["bias"]
    return (
        axes in (1, 2, 3)
        and a["input"].dim() == a["weight"].dim() == axes + 2
        and all(_from(a[name], 1, axes) for name in ("stride", "dilation"))
        and all(_from(a[name], 0, axes) for name in ("padding", "output_padding"))
        and a["groups"] >= 1
        and (bias is None or bias.dim() == 1)
    )


def _pool(a: Arguments) -> bool:
    axes, divisor = len(a["kernel_size"]), a.get("divisor_override")
    return (
        axes in (2, 3)
        and a["self"].dim() == axes + 2
        and all(_from(a[name], 1, axes) for name in ("kernel_size", "stride", "dilation") if name in a)
        and _from(a["padding"], 0, axes)
        and (divisor is None or divisor >= 1)
    )


def _layer_norm(a: Arguments) -> bool:
    shape = tuple(a["normalized_shape"])
    own = tuple(a["input"].shape[-len(shape) :])
    return all(each == shape for each in (own, *_scales(a)))


def _group_norm(a: Arguments) -> bool:
    """torch takes N, C and HxW from the arguments, so they must be those of the input."""
    shape = a["input"].shape
    return (
        len(shape) >= 2
        and (a["N"], a["C"], a["HxW"]) == (shape[0], shape[1], prod(shape[2:]))
        and a["group"] >= 1
        and (a["bias"] is None or a["weight"] is not None)  # torch's own gradient fails
        and all(each == (a["C"],) for each in _scales(a))
    )


def _scales(a: Arguments) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in (a["weight"], a["bias"]) if each is not None]


def _sizes(a: Arguments) -> bool:
    size = next(a[name] for name in ("size", "shape", "repeats") if name in a)
    return _from(size, 1) and ("repeats" not in a or len(size) == a["self"].dim() > 0)


def _padding(a: Arguments) -> bool:
    pad = a["pad"]
    return _from(pad, 0) and len(pad) % 2 == 0 < len(pad) <= 2 * a["self"].dim()


def _place(a: Arguments) -> bool:
    size = a["self"].shape[a["dim"]]
    if "index" in a:
        return bool(0 <= a["index"] < size)
    return bool(0 <= a["start"] < a["end"] <= size and a["step"] >= 1) and _alike(a)


def _gathered(a: Arguments) -> bool:
    x, index = a["self"], a["index"]
    return (
        index.dtype == torch.int64
        and index.dim() == x.dim()
        and all(i <= n for k, (i, n) in enumerate(zip(index.shape, x.shape, strict=True)) if k != a["dim"])
    )


def _indexed(a: Arguments) -> bool:
    given = [each for each in a["indices"] if each is not None]
    return bool(given) and len(a["indices"]) <= a["self"].dim() and all(i.dtype == torch.int64 for i in given)


_OF_FLOATS = """
exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh
acosh atanh sigmoid erf erfc lgamma relu floor ceil round trunc isnan isinf celu elu hardtanh
leaky_relu mish softplus
"""
_COMPARED = "eq ne lt le gt ge"


def _overloads(names: str, *overloads: str) -> str:
    return " ".join(f"{name}.{overload}" for name in names.split() for overload in overloads)


_FORMS: dict[str, tuple[Sequence[Callable[[Arguments], bool]], str]] = {
    "any tensor": ((), "detach.default"),
    "converted to a type": ((), "_to_copy.default(dtype)"),
    "numbers": ([_numbers], "abs.default neg.default sign.default"),
    "floats": ([_floats], _overloads(_OF_FLOATS, "default") + " gelu.default(approximate)"),
    "truth values": (
        [lambda a: all(each.dtype == torch.bool for each in _tensors(a))],
        "logical_not.default logical_and.default logical_or.default logical_xor.default",
    ),
    "two that broadcast": (
        [_pair],
        "add.Tensor(alpha) sub.Tensor(alpha) mul.Tensor maximum.default minimum.default "
        + _overloads(_COMPARED, "Tensor", "Scalar"),
    ),
    "two of floats that broadcast": ([_floats, _pair], "div.Tensor atan2.default pow.Tensor_Tensor"),
    "a fixed power of floats": (
        [_floats, lambda a: not isinstance(a["exponent"], Tensor)],
        "pow.Tensor_Scalar",
    ),
    "a power of a fixed number": ([_floats], "pow.Scalar"),
    # A whole number modulo 0 raises, and modulo -1 can end the process.
    "modulo a positive number": ([_pair, lambda a: a["other"] > 0], "fmod.Scalar remainder.Scalar"),
    "between bounds": ([_pair], "clamp.default clamp.Tensor"),
    "chosen by truth values": (
        [lambda a: a["condition"].dtype == torch.bool and a["self"].dtype == a["other"].dtype],
        "where.self",
    ),
    "over axes": ((), "sum.dim_IntList any.dims"),
    "numbers over axes": ([_numbers], "amax.default amin.default"),
    "floats over axes": (
        [_floats],
        "mean.dim var.correction(correction,keepdim) std.correction(correction,keepdim)",
    ),
    "norm over axes": ([_floats, lambda a: a["ord"] > 0], "linalg_vector_norm.default"),
    "along an axis": (
        [_numbers],
        "cumsum.default argmax.default argmin.default max.dim min.dim sort.default",
    ),
    "floats along an axis": (
        [_floats, lambda a: a.get("half_to_float", False) is False],
        "_softmax.default _log_softmax.default",
    ),
    "the largest along an axis": (
        [_numbers, lambda a: 1 <= a["k"] <= a["self"].shape[a["dim"]]],
        "topk.default",
    ),
    "matrices": ([_floats, _alike, _matrices], "mm.default addmm.default"),
    "batches of matrices": (
        [_floats, _alike, lambda a: all(each.dim() == 3 for each in _tensors(a))],
        "bmm.default",
    ),
    "images and kernels": ([_floats, _alike, _convolution], "convolution.default"),
    "images": (
        [_floats, _pool],
        "avg_pool2d.default avg_pool3d.default max_pool2d_with_indices.default "
        "max_pool3d_with_indices.default",
    ),
    "images of a fixed size": (
        [_floats, lambda a: a["self"].dim() == 4 and _from(a["output_size"], 1, 2)],
        "_adaptive_avg_pool2d.default adaptive_max_pool2d.default",
    ),
    "normalised over the last axes": ([_floats, _alike, _layer_norm], "native_layer_norm.default"),
    "normalised in groups of channels": ([_floats, _alike, _group_norm], "native_group_norm.default"),
    "sizes": ([_sizes], "reshape.default expand.default repeat.default"),
    "axes in another order": (
        [lambda a: sorted(a["dims"]) == list(range(a["self"].dim()))],
        "permute.default",
    ),
    "axes": ((), "flip.default diagonal.default"),
    "padded": ([_numbers, _padding], "constant_pad_nd.default"),
    "a fixed place": ([_place], "select.int slice.Tensor slice_scatter.default"),
    "joined along an axis": (
        [_alike, lambda a: len({each.dim() for each in a["tensors"]}) == 1],
        "cat.default",
    ),
    "looked up": (
        [lambda a: a["index"].dtype == torch.int64 and a["index"].dim() == 1],
        "index_select.default",
    ),
    "gathered": ([_gathered], "gather.default"),
    "indexed": ([_indexed], "index.Tensor"),
}
"""A form of arguments: its conditions, and the operations that take it (with options that may be given)."""


def aten(name: str) -> Any:
    """An operation of torch by the names of its packet and its overload: `add.Tensor`."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _entries() -> dict[str, Entry]:
    made = {"getitem": Entry(operator.getitem, "a part of a result", {"self": "parts", "index": "int"})}
    for form, (_, operations) in _FORMS.items():
        for written in operations.split():
            name, _, options = written.rstrip(")").partition("(")
            function = aten(name)
            kinds = {
                each.name: str(each.type)
                for each in function._schema.arguments
                if not each.kwarg_only or each.name in options.split(",")
            }
            made[name] = Entry(function, form, kinds, tuple(filter(None, options.split(","))))
    return made


TABLE: Mapping[str, Entry] = _entries()


def outcome(name: str, arguments: Sequence[Any], options: Arguments) -> Values:
    """The result of an operation on tensors without values, after checking its arguments, all by position (on
    the device `meta`, without values), and its options, the others by name. NotAllowedError: the operation
    has no entry in the table, or the arguments are not in its form.
    """
    entry = TABLE.get(name)
    if entry is None:
        hint = f"its operation {name} is not on the list of those that act on one record alone"
        raise NotAllowedError(hint)
    positional = [each for each in entry.kinds if each not in entry.options]
    if len(arguments) != len(positional) or not set(options) <= set(entry.options):
        raise _outside(name, entry, arguments)
    given = dict(zip(positional, arguments, strict=True)) | dict(options)
    if name == "getitem":
        parts, place = given["self"], given["index"]
        if type(parts) is not tuple or type(place) is not int or not 0 <= place < len(parts):
            raise _outside(name, entry, arguments)
        part: Tensor = parts[place]
        return part
    if not all(_fits(name, each, entry.kinds[each], value) for each, value in given.items()):
        raise _outside(name, entry, arguments)
    if not _tensors(given) or not _axes_fit(given) or not all(fits(given) for fits in _FORMS[entry.form][0]):
        raise _outside(name, entry, arguments)
    try:
        made = entry.operation(*arguments, **options)
    except Exception as error:
        raise NotAllowedError(f"its operation {name} cannot be applied: {type(error).__name__}") from None
    found: Values = made if isinstance(made, Tensor) else tuple(made)
    for each in (found,) if isinstance(found, Tensor) else found:
        check_result(name, each)
    return found


def check_result(name: str, result: Tensor) -> None:
    """NotAllowedError where the operation gives a tensor of another type or size than a program may hold."""
    if result.dtype not in DTYPES.values() or not 1 <= result.numel() <= LARGEST:
        hint = f"tensors must be of {', '.join(DTYPES)} and hold 1 to {LARGEST:,} numbers"
        raise NotAllowedError(f"its operation {name} gives {tuple(result.shape)} of {result.dtype}; {hint}")


def _outside(name: str, entry: Entry, arguments: Sequence[Any]) -> NotAllowedError:
    given = [
        f"{each.dtype}{list(each.shape)}".removeprefix("torch.") if isinstance(each, Tensor) else each
        for each in arguments
    ]
    text = f"its operation {name} may be applied only in this form: {entry.form}; here it is given {given}"
    return NotAllowedError(text[:300])


_PLAIN = (int, float)
_TAKES_NUMBERS = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
_WORDS = {"approximate": ("none", "tanh")}


def _fits(name: str, argument: str, kind: str, value: object) -> bool:
    """Whether a value has its argument's type, exactly."""
    if kind.startswith("Optional[") and argument not in ("dtype", *_WORDS):
        return value is None or _fits(name, argument, kind[9:-1], value)
    if kind.startswith("List["):
        filled = bool(value) or argument == "shape"  # of a single number
        return type(value) is tuple and filled and all(_fits(name, argument, kind[5:-1], v) for v in value)
    if argument in _WORDS:
        return value in _WORDS[argument]
    if argument == "dtype":
        return value in DTYPES.values()
    if kind == "Tensor":
        return isinstance(value, Tensor) or (name in _TAKES_NUMBERS and type(value) in _PLAIN)
    types = {"int": (int,), "bool": (bool,), "float": _PLAIN, "number": _PLAIN}[kind]
    return type(value) in types and not (type(value) is int and abs(value) > 2**62)


def _axes_fit(a: Arguments) -> bool:
    """Axes are given, each once, and count from the front: a number has none."""
    rank = _first(a).dim()
    named = [a[name] for name in ("dim", "dims", "dim1", "dim2") if name in a]
    if named and type(named[0]) is int:
        named = [tuple(named)]
    return all(bool(axes) and len(set(axes)) == len(axes) and set(axes) <= set(range(rank)) for axes in named)


def _from(values: Sequence[int], least: int, count: int | None = None) -> bool:
    return all(value >= least for value in values) and count in (None, len(values))


def _tensors(a: Arguments) -> list[Tensor]:
    nested = (value if isinstance(value, tuple) else (value,) for value in a.values())
    return [each for values in nested for each in values if isinstance(each, Tensor)]


def _first(a: Arguments) -> Tensor:
    return _tensors(a)[0]
