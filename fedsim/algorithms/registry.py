"""Finds the algorithms: every module of this package that holds one, under the module's name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from types import ModuleType

import fedsim.algorithms
from fedsim.protocol.contract import Algorithm


@cache
def algorithms() -> dict[str, type[Algorithm]]:
    """{scenario name: dataclass}, sorted by name; adding a file adds an algorithm."""
    names = sorted(module.name for module in pkgutil.iter_modules(fedsim.algorithms.__path__))
    modules = {name: importlib.import_module(f"fedsim.algorithms.{name}") for name in names}
    found = {name: _algorithm_in(module) for name, module in modules.items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _algorithm_in(module: ModuleType) -> type[Algorithm] | None:
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if kind.__module__ == module.__name__ and hasattr(kind, "server") and hasattr(kind, "silo"):
            return kind
    return None
