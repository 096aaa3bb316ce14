"""Which algorithm is meant: a name, a class of a module, or a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsim.algorithms.registry import ALGORITHM_HAS, algorithms, is_algorithm
from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.protocol.blame import raised
from fedsim.testing.algorithm_tests import AlgorithmTests
from fedsim.testing.example import Example
from fedsim.testing.guess import guessed


def examples(named: str, numbers: Mapping[str, Any], left_out: Mapping[str, str]) -> dict[str, Example]:
    """{title: example} of what is named.

    Args:
        named: a scenario's name of an algorithm, module:Class, file.py or file.py:Class; a file that holds
            `AlgorithmTests` is taken at their examples.
        numbers: of fields, for classes without an example.
        left_out: besides the examples' own.

    Raises:
        InputError: there is no such algorithm, or a number cannot be guessed.
    """
    found = {
        kind.__qualname__: kind.example if issubclass(kind, AlgorithmTests) else guessed(kind, numbers)
        for kind in _classes(named)
    }
    return {
        title: replace(example, left_out={**example.left_out, **left_out}) for title, example in found.items()
    }


def _classes(named: str) -> list[Any]:
    place, _, attribute = named.partition(":") if not Path(named).is_file() else (named, "", "")
    if not attribute and not place.endswith(".py"):
        if place not in algorithms():
            expected = f"{suggest(place, algorithms())}; or module:Class, or file.py"
            raise InputError("ALGORITHM", named, expected)
        return [algorithms()[place]]
    module = _module(place, named)
    if attribute:
        return [_algorithm(getattr(module, attribute, None), named)]
    own = [kind for kind in vars(module).values() if getattr(kind, "__module__", None) == module.__name__]
    tests = [kind for kind in own if isinstance(kind, type) and issubclass(kind, AlgorithmTests)]
    if found := tests or [kind for kind in own if is_algorithm(kind)]:
        return found
    raise InputError("ALGORITHM", named, f"holds no dataclass with {ALGORITHM_HAS}")


def _algorithm(thing: object, named: str) -> object:
    if is_algorithm(thing) or (isinstance(thing, type) and issubclass(thing, AlgorithmTests)):
        return thing
    raise InputError("ALGORITHM", named, f"must name a dataclass with {ALGORITHM_HAS}")


def _module(place: str, named: str) -> ModuleType:
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        reason = raised(error) if isinstance(error, Exception) else "it ends the process"
        raise InputError("ALGORITHM", named, f"cannot be imported: {reason}") from error


def _from_file(path: Path) -> ModuleType:
    """A file as a module of its own name, beside its neighbours."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
