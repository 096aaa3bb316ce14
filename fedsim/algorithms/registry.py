"""The registry of algorithms: the modules of this package, and the entry points of `fedsim.algorithms`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

import fedsim.algorithms
from fedsim.common.errors import InputError, suggest
from fedsim.common.plugins import class_of, entry_points, file_of
from fedsim.common.registry import Registry

if TYPE_CHECKING:  # a silo knows names before it runs any
    from fedsim.protocol.contract import Algorithm

GROUP = "fedsim.algorithms"


@cache
def algorithms() -> Registry[type[Algorithm]]:
    """{scenario name: dataclass}, sorted by name; adding a file, or an entry point, adds an algorithm.

    InputError if an entry point does not load, is no algorithm, or has a name that is taken.
    """
    found = dict[str, "type[Algorithm]"]()
    for name, thing in entry_points(GROUP).items():
        if name in shipped():
            hint = "another name: fedsim has an algorithm of this one"
            raise InputError(f"entry point {GROUP}:{name}", thing, hint)
        if not is_algorithm(thing):
            raise InputError(f"entry point {GROUP}:{name}", thing, f"a dataclass with {ALGORITHM_HAS}")
        found[name] = cast("type[Algorithm]", thing)
    names = sorted([*shipped_names(), *found])
    return Registry(names, lambda name: found[name] if name in found else _shipped(name))


# modules without an algorithm that trains
_HELPERS = ("base", "evaluation", "prepared", "quantile_clip", "registry", "section", "with_public")
EVALUATION = "evaluation"  # is run after a scenario's own algorithm, so that no scenario names it


@cache
def shipped_names() -> tuple[str, ...]:
    """Names of the algorithms that fedsim ships, sorted; none of them is loaded for it."""
    names = (module.name for module in pkgutil.iter_modules(fedsim.algorithms.__path__))
    return tuple(sorted(name for name in names if name not in _HELPERS))


@cache
def shipped() -> Registry[type[Algorithm]]:
    """{scenario name: dataclass} of the algorithms that fedsim ships."""
    return Registry(shipped_names(), _shipped)


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm of this scenario name, InputError if there is none; of those that fedsim ships only this
    one is loaded. A file's is that of the contents that this process has read.
    """
    if file_of(name):
        return cast("type[Algorithm]", class_of(name, _NAME, is_algorithm, f"dataclass with {ALGORITHM_HAS}"))
    if name in (*shipped_names(), EVALUATION):
        return _shipped(name)
    if name not in (known := algorithms()):
        raise InputError(_NAME, name, f"{suggest(name, known)}; or my.py:MyAlgorithm, a class of your file")
    return known[name]


_NAME = "scenario.algorithm.name"


@cache
def _shipped(name: str) -> type[Algorithm]:
    module = importlib.import_module(f"fedsim.algorithms.{name}")
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if kind.__module__ == module.__name__ and is_algorithm(kind):
            return cast("type[Algorithm]", kind)
    raise TypeError(f"{module.__name__} holds no algorithm")


ALGORITHM_HAS = "methods server and silo and a class attribute linear"


def is_algorithm(thing: object) -> bool:
    """Whether it is a dataclass with `ALGORITHM_HAS`."""
    parts = ("server", "silo", "linear")
    return inspect.isclass(thing) and is_dataclass(thing) and all(hasattr(thing, part) for part in parts)
