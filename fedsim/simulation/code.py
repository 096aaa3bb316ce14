"""Code of others as text that is equal in every process: a plug-in that was edited is another one.

A package is hashed. A class of a notebook's cell or of a script is in none: its code is read wherever it has
travelled, and that of the functions and classes that it uses. Where they stand does not count, nor do
comments.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fedsim.common.errors import InputError
from fedsim.simulation.text import text_of

_NOT_THEIRS = {"fedsim", "", *sys.stdlib_module_names}
_GENERATED = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}
"""What `dataclass` writes; it follows from the fields."""


def packages(modules: Iterable[str]) -> list[str]:
    """Name and hash of each package of others that one of the modules is in, sorted."""
    tops = {module.partition(".")[0] for module in modules}
    return [_package(name) for name in sorted(tops - _NOT_THEIRS)]


@lru_cache(maxsize=64)
def _package(name: str) -> str:
    spec = find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in sorted(Path(folder).rglob("*.py"))]
    if not files and spec and spec.origin and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    return name + hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _distributed() -> frozenset[str]:
    return frozenset(metadata.packages_distributions())


def is_installed(module: str) -> bool:
    """Whether a module is Python's, fedsim's or of an installed distribution: every process has it."""
    top = module.partition(".")[0]
    return top in _NOT_THEIRS or top in _distributed()


class Code:
    """The code of a class, and of whatever it uses that is not installed.

    Attributes:
        text: equal for classes that do the same.
        modules: where it stands; none of them is installed.
    """

    def __init__(self, kind: type) -> None:
        self.modules: set[str] = set()
        self._seen: set[int] = set()
        self.text = "\n".join(self._class(kind))

    def _class(self, kind: type) -> Iterator[str]:
        for part in kind.__mro__:
            if not self._new(part):
                continue
            yield f"class {part.__qualname__}"
            for name, member in sorted(vars(part).items()):
                if name not in _GENERATED:
                    yield from self._member(name, member)

    def _new(self, thing: type | FunctionType) -> bool:
        """Whether a class or function is to be read: not installed, and met for the first time."""
        module = thing.__module__ or ""
        if is_installed(module) or id(thing) in self._seen:
            return False
        self._seen.add(id(thing))
        self.modules.add(module)
        return True

    def _member(self, name: str, member: Any) -> Iterator[str]:
        wrapped = (member.fget, member.fset) if isinstance(member, property) else (member,)
        for each in wrapped:
            function = getattr(each, "__func__", each)  # of a static or class method
            if isinstance(function, FunctionType):
                yield from self._function(function)
            elif not name.startswith("__"):
                yield f"{name} = {self._value(function)}"

    def _function(self, function: FunctionType) -> Iterator[str]:
        if not self._new(function):
            return
        yield f"def {function.__qualname__}"
        yield _compiled(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        named = [
            function.__globals__[name] for name in _globals(function.__code__) if name in function.__globals__
        ]
        for used in (function.__defaults__, function.__kwdefaults__, *cells, *named):
            yield from self._used(used)

    def _used(self, value: Any) -> Iterator[str]:
        if isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        yield self._value(value)

    def _value(self, value: Any) -> str:
        if isinstance(value, type | FunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, ModuleType):
            top = value.__name__.partition(".")[0]
            return value.__name__ if is_installed(top) else "".join(packages([top]))
        try:
            return text_of(value)
        except InputError:
            return self._object(value)

    def _object(self, value: Any) -> str:
        """Of an object that says nothing of itself: its class, and all that it holds."""
        kind = type(value)
        if id(value) in self._seen:
            return kind.__qualname__
        self._seen.add(id(value))
        if not hasattr(value, "__dict__"):
            expected = "is used by the algorithm's code, and nobody can tell what it holds: make it a field"
            raise InputError(f"an object of {kind.__qualname__}", value, expected)
        held = {name: self._value(each) for name, each in sorted(vars(value).items())}
        return f"{' '.join(self._class(kind))} {held}"


def _compiled(code: CodeType) -> str:
    """Instructions, names and constants, nested functions included."""
    constants = [
        _compiled(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _globals(code: CodeType) -> list[str]:
    """Names that are looked up in the module, here and in nested functions."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    nested = [name for each in code.co_consts if isinstance(each, CodeType) for name in _globals(each)]
    return sorted(names.union(nested))
