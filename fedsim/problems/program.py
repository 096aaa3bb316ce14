"""A function of one record as data: operations of the table, one after the other.

A program runs by calling the table's operations as functions. No module is called, so no hook runs. A
program can be serialised as numbers and names. It is checked whenever one is made, from torch's graph or from
a message: every operation and the form of its arguments, by running it on tensors without values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.problems.exact_operations import EXACT
from fedsim.problems.operations import DTYPES, LARGEST, LOOK_UPS, TABLE, NotAllowedError, Values, outcome
from fedsim.problems.work import tensors, work

MAX_STEPS = 20_000
MAX_NUMBERS = 2**26  # limit of the numbers that all steps give for one record: 512 MiB in float64
MAX_WORK = 2**30  # limit of the multiplications and additions for one record, about: seconds with a gradient
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_TYPES = {np.dtype(name): name for name in DTYPES}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A reference: the parameters count from 0, then the record's tensors, the constants and the steps."""

    number: int


@dataclass(frozen=True)
class Step:
    """One operation."""

    operation: str  # a key of `fedsim.problems.operations.TABLE`
    # by position: values, whole numbers, numbers, truth values, None, or tuples of these
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # the others, by name; types as torch's


@dataclass(frozen=True, eq=False)
class Program:
    """A function of named parameters and a record's tensors; NotAllowedError if none may be given to it."""

    parameters: tuple[tuple[str, Shape, torch.dtype], ...]  # name, shape and type of each that is read
    record: tuple[tuple[Shape, torch.dtype], ...]  # shape and type of each of the record's tensors
    constants: tuple[Tensor, ...]
    steps: tuple[Step, ...]  # in order; each refers to what stands before it
    output: int  # which value is the result
    shape: Shape = field(init=False)  # the result's
    numbers: int = field(init=False)  # how many numbers the steps give in all
    nanoseconds: int = field(init=False)  # at most, about, with a gradient, beside those of starting a step

    def __post_init__(self) -> None:
        for name, value in zip(("shape", "numbers", "nanoseconds"), check(self), strict=True):
            object.__setattr__(self, name, value)

    @property
    def raises(self) -> bool:
        """Whether a record can make it raise: by looking up a place that is not there."""
        first = len(self.parameters) + len(self.record)
        constants = range(first, first + len(self.constants))
        for step in self.steps:
            if step.operation in LOOK_UPS:
                given = (each if isinstance(each, tuple) else (each,) for each in step.arguments[1:])
                if any(isinstance(at, Value) and at.number not in constants for own in given for at in own):
                    return True
        return False

    def __call__(self, parameters: Mapping[str, Tensor], *record: Tensor, exact: bool = False) -> Tensor:
        """The value at a `record` as declared; `exact`: with products as `fedsim.problems.exact` has them."""
        values: list[Any] = [parameters[name] for name, _, _ in self.parameters]
        values += [*record, *self.constants]
        for step in self.steps:
            arguments = [_filled(each, values) for each in step.arguments]
            operation = (exact and EXACT.get(step.operation)) or TABLE[step.operation].operation
            values.append(operation(*arguments, **step.options))
        result: Tensor = values[self.output]
        return result

    def to_data(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Serialise: a tree that JSON can hold, and the constants."""
        steps = [
            [step.operation, _encoded(step.arguments), {k: _encoded(v) for k, v in step.options.items()}]
            for step in self.steps
        ]
        tree = {
            "parameters": [[name, list(shape), _NAMES[dtype]] for name, shape, dtype in self.parameters],
            "record": [[list(shape), _NAMES[dtype]] for shape, dtype in self.record],
            "steps": steps,
            "output": self.output,
        }
        return tree, [constant.numpy() for constant in self.constants]

    @classmethod
    def from_data(cls, tree: object, arrays: Sequence[np.ndarray]) -> Program:
        """Deserialise and check a program of an untrusted sender; NotAllowedError if it is none, or one that
        a record must not be given to.
        """
        try:
            parts = dict(_only(tree, dict))
            parameters = tuple(
                (_only(name, str), _shape(shape), DTYPES[dtype])
                for name, shape, dtype in parts.pop("parameters")
            )
            record = tuple((_shape(shape), DTYPES[dtype]) for shape, dtype in parts.pop("record"))
            steps = tuple(_step(each) for each in _only(parts.pop("steps"), list))
            output = _only(parts.pop("output"), int)
            constants = tuple(_constant(array) for array in arrays)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotAllowedError("what was sent is no program") from None
        if parts:
            raise NotAllowedError("what was sent is more than a program")
        return cls(parameters, record, constants, steps, output)


def check(program: Program) -> tuple[Shape, int, int]:
    """The shape of the result, the count of numbers that the steps give, and nanoseconds (`Program`), without
    values. NotAllowedError: an operation without an entry in the table, or outside its form; a reference to
    what is not there; more steps, numbers or work than are allowed.
    """
    names = [name for name, _, _ in program.parameters]
    given = [
        *((shape, dtype) for _, shape, dtype in program.parameters),
        *program.record,
        *((tuple(each.shape), each.dtype) for each in program.constants),
    ]
    if len(program.steps) > MAX_STEPS or len(given) > MAX_STEPS or len(set(names)) < len(names):
        raise NotAllowedError(f"it must have at most {MAX_STEPS:,} steps, and each parameter once")
    if any(not 1 <= prod(shape) <= LARGEST or dtype not in _NAMES for shape, dtype in given):
        hint = f"each of its tensors must hold 1 to {LARGEST:,} numbers of {', '.join(DTYPES)}"
        raise NotAllowedError(hint)
    if sum(constant.numel() for constant in program.constants) > LARGEST:
        raise NotAllowedError(f"its constants must hold at most {LARGEST:,} numbers")
    values: list[Values] = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in given]
    numbers = done = nanoseconds = 0
    for step in program.steps:
        try:
            arguments = [_filled(each, values) for each in step.arguments]
        except IndexError:
            raise NotAllowedError(f"its operation {step.operation} refers to what is not there") from None
        value = outcome(step.operation, arguments, step.options)
        values.append(value)
        if step.operation == "getitem":
            continue
        numbers += sum(each.numel() for each in tensors(value))
        own, time = work(step.operation, arguments, value)
        done, nanoseconds = done + own, nanoseconds + time
        if numbers > MAX_NUMBERS or done > MAX_WORK:
            most = f"{MAX_NUMBERS:,} numbers on the way and take at most {MAX_WORK:,} multiplications"
            raise NotAllowedError(f"for one record it must give at most {most}")
    if not 0 <= program.output < len(values) or not isinstance(values[program.output], Tensor):
        raise NotAllowedError("its result must be one tensor")
    return tuple(values[program.output].shape), numbers, nanoseconds  # type: ignore[union-attr]


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    kind = type(argument)
    if kind is Value:
        return values[argument.number]
    if kind is tuple:
        return tuple([values[each.number] if type(each) is Value else each for each in argument])
    return argument


def _encoded(argument: Any) -> Any:
    if isinstance(argument, Value):
        return {"value": argument.number}
    if isinstance(argument, tuple):
        return [_encoded(each) for each in argument]
    if isinstance(argument, torch.dtype):
        return {"dtype": _NAMES[argument]}
    if isinstance(argument, float) and not np.isfinite(argument):
        return {"float": str(argument)}  # JSON has none
    return argument


def _decoded(argument: object, nested: bool = False) -> Any:
    if type(argument) in (int, float, bool, str, type(None)):
        return argument
    if type(argument) is list and not nested:
        return tuple(_decoded(each, nested=True) for each in argument)
    ((kind, value),) = _only(argument, dict).items()
    if kind == "value":
        return Value(_natural(value))
    if kind == "float" and value in ("inf", "-inf", "nan"):
        return float(value)
    if kind == "dtype":
        return DTYPES[value]
    raise ValueError(kind)


def _step(written: object) -> Step:
    operation, arguments, options = _only(written, list)
    decoded = tuple(_decoded(each) for each in _only(arguments, list))
    return Step(_only(operation, str), decoded, {k: _decoded(v) for k, v in _only(options, dict).items()})


def _shape(sizes: object) -> Shape:
    return tuple(_natural(size) for size in _only(sizes, list))


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _only(value: object, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(kind)
    return value


def _constant(array: np.ndarray) -> Tensor:
    """A copy as a tensor; types of another byte order are refused."""
    if type(array) is not np.ndarray or array.size > LARGEST:
        raise TypeError
    return torch.tensor(array, dtype=DTYPES[_TYPES[array.dtype]])
