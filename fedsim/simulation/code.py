"""What an object does, as text that is equal in every process, also where its class has no file.

A class of a notebook's cell or of a script is in no installed package whose files could be hashed. Its code
can be read wherever it has travelled, and so can that of the functions, classes and objects that it uses or
holds. Where they stand does not count, nor do comments.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from importlib import metadata
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedsim.common.errors import InputError
from fedsim.simulation.installed import NOT_THEIRS, packages
from fedsim.simulation.text import text_of

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
_GENERATED = ("__create_fn__.<locals>.", "_recursive_repr.<locals>.")
"""Of what `dataclass` writes, the names in the code; it follows from the fields."""

_METHODS = (staticmethod, classmethod, types.MethodType)
_OF_C = (
    types.WrapperDescriptorType
    | types.MethodDescriptorType
    | types.ClassMethodDescriptorType
    | types.GetSetDescriptorType
    | types.MemberDescriptorType
)
_BUILT_IN = types.BuiltinFunctionType | types.MethodWrapperType


@functools.cache
def _distributed() -> frozenset[str]:
    return frozenset(metadata.packages_distributions())


def is_installed(module: str) -> bool:
    """Whether a module is Python's, fedsim's or of an installed distribution: every process has it."""
    top = module.partition(".")[0]
    return top in NOT_THEIRS or top in _distributed()


class Code:
    """The code of a class or an object, and of whatever it uses or holds that is not installed.

    Attributes:
        text: equal for classes that do the same.
        modules: where it stands; none of them is installed.

    Raises:
        InputError: it uses or holds something of which nobody can tell what it holds.
    """

    def __init__(self, thing: object) -> None:
        self.modules: set[str] = set()
        self._seen: dict[int, tuple[int, object]] = {}  # kept, so that no other object gets its id
        self.text = "\n".join(self._of(thing))

    def _of(self, value: Any) -> Iterator[str]:
        if isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, ModuleType):
            yield _module(value.__name__)
        elif isinstance(value, _OF_C):
            yield f"{value.__objclass__.__qualname__}.{value.__name__}"
        elif type(value) in (list, tuple, dict, types.MappingProxyType):
            yield from self._container(value)
        elif type(value) in (set, frozenset):
            for _, each in sorted((text_of(each), each) for each in value):
                yield from self._of(each)
        else:
            yield from self._object(value)

    def _again(self, thing: object) -> int | None:
        """The number of a thing that was met already; None where it is met for the first time."""
        if id(thing) in self._seen:
            return self._seen[id(thing)][0]
        self._seen[id(thing)] = len(self._seen), thing
        return None

    def _theirs(self, thing: type | FunctionType) -> bool:
        """Whether a class or function is to be read, being in no package that every process has."""
        module = thing.__module__ or ""
        if is_installed(module):
            return False
        self.modules.add(module)
        return True

    def _class(self, kind: type) -> Iterator[str]:
        yield f"class {kind.__module__}.{kind.__qualname__}"
        if not self._theirs(kind):
            return
        if (seen := self._again(kind)) is not None:
            yield str(seen)
            return
        yield from self._class(type(kind))
        for base in kind.__bases__:
            yield from self._class(base)
        held = vars(kind)
        for name in sorted(held):
            if name in ("_abc_impl", "__dataclass_params__") or _generated(held[name]):
                continue
            if name == "__dataclass_fields__":
                for field in held[name].values():
                    if type(field.default_factory) is not type(MISSING):  # a copy where it has travelled
                        yield from self._of(field.default_factory)
            elif not name.startswith("__") or callable(held[name]) or isinstance(held[name], _METHODS):
                yield f"{name} ="
                yield from self._of(held[name])

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield f"def {function.__module__}.{function.__qualname__}"
        seen = self._again(function)
        if seen is not None:
            yield str(seen)
            return
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        if not self._theirs(function):  # what a decorator of others made of a function has that in a cell
            for used in cells if "<locals>" in function.__qualname__ else ():
                yield from self._of(used)
            return
        code, names = function.__code__, function.__globals__
        yield _compiled(code)
        for imported in _named(code, {"IMPORT_NAME"}):
            yield _module(imported or names.get("__package__") or "")
        for name in _named(code, _LOADS):
            if name in names:
                yield f"{name} ="
                yield from self._of(names[name])
        for used in (function.__defaults__, function.__kwdefaults__, cells, vars(function)):
            yield from self._of(used)

    def _container(self, value: Any) -> Iterator[str]:
        if not isinstance(value, tuple) and (seen := self._again(value)) is not None:
            yield f"{type(value).__name__} {seen}"
            return
        yield f"{type(value).__name__} of {len(value)}"
        for each in value.items() if isinstance(value, Mapping) else value:
            for part in each if isinstance(value, Mapping) else (each,):
                yield from self._of(part)

    def _object(self, value: Any) -> Iterator[str]:
        """Its class, and all that it holds, in whatever way it would travel."""
        text = _plain(value)
        if text is not None:
            yield text
            return
        seen = self._again(value)
        yield f"{type(value).__qualname__} {'' if seen is None else seen}"
        if seen is None:
            yield from self._class(type(value))
            for part in self._parts(value):
                yield from self._of(part)

    def _parts(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, property):
            return value.fget, value.fset, value.fdel
        if isinstance(value, functools.cached_property):
            return (value.func,)
        if isinstance(value, types.MethodType):
            return value.__func__, value.__self__
        if isinstance(value, _METHODS):
            return (value.__func__,)
        if isinstance(value, _BUILT_IN):
            own = value.__self__
            return value.__qualname__, own
        reduced = _reduced(value)
        wrapped = getattr(value, "__wrapped__", None)
        return (reduced, wrapped) if isinstance(reduced, str) else (*map(_listed, reduced), wrapped)


def _plain(value: Any) -> str | None:
    """The text of a value whose class says nothing more."""
    if type(value).__module__.partition(".")[0] not in ("builtins", "numpy", "torch", "pathlib"):
        return None
    try:
        return text_of(value)
    except InputError:
        return None


def _reduced(value: Any) -> Any:
    kind = type(value)
    try:
        known = copyreg.dispatch_table.get(kind)
        return known(value) if known else value.__reduce_ex__(4)
    except Exception:
        expected = "is used by the algorithm's code, and nobody can tell what it holds: make it a field"
        raise InputError(f"an object of {kind.__qualname__}", value, expected) from None


def _listed(part: Any) -> Any:
    """The items of a list or mapping that travel as an iterator."""
    return list(part) if isinstance(part, Iterator) else part


def _module(name: str) -> str:
    top = name.partition(".")[0]
    try:
        return name if is_installed(top) else " ".join([name, *packages([top])])
    except ValueError:
        expected = "is imported by the algorithm's code and has no file: define what it uses there itself"
        raise InputError("a module", name, expected) from None


def _generated(member: Any) -> bool:
    code = getattr(member, "__code__", None)
    return isinstance(code, CodeType) and code.co_qualname.startswith(_GENERATED)


def _compiled(code: CodeType) -> str:
    """Instructions, names and constants, nested functions included."""
    called = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    constants = [_constant(each) for each in code.co_consts]
    instructions = f"{code.co_code.hex()} {code.co_exceptiontable.hex()}"
    return f"{instructions} {called} {arguments} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _compiled(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _named(code: CodeType, operations: set[str]) -> list[str]:
    """Names that these operations look up, here and in nested functions."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in operations}
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    return sorted(names.union(*(_named(each, operations) for each in nested)))
