"""Heavy libraries that run when they are first used, so that a command can refuse without them."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

HEAVY = ("torch", "scipy.special", "scipy.stats", "scipy.fft")
_LOCK = RLock()


def lazily(*names: str) -> None:
    """From here on `import torch` only notes that it was asked for, and the first `torch.name` runs it.

    `from torch import Tensor` and `import torch.nn` are uses: where a scenario is read, such a line stands
    under TYPE_CHECKING. A library that is not there, or that has run already, is left alone.
    (`importlib.util.LazyLoader` runs a module as soon as a second one imports it.)
    """
    for name in names:
        if name in sys.modules or (spec := find_spec(name)) is None:
            continue
        sys.modules[name] = module = module_from_spec(spec)
        module.__class__ = _Later
        vars(module)["_later"] = vars(module).pop("__path__", None)  # without it no submodule runs first


class _Later(ModuleType):
    """A module that has not run."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:  # another thread waits for the whole of it
            if "_later" in vars(self):
                _run(self)
            elif isinstance(self, _Later):  # it runs, and asks for what it does not have
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)


def _run(module: ModuleType) -> None:
    path, spec = vars(module).pop("_later"), module.__spec__
    if path is not None:
        module.__path__ = path
    assert spec is not None
    assert spec.loader is not None
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    module.__class__ = ModuleType
