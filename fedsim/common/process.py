"""The running process: its threads, memory and Ctrl-C, and modules that load when they are used."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

from fedsim.common.errors import InputError


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch and NumPy compute in one thread; the caller's numbers come back."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    with threadpool_limits(1, "blas"):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def keep_to_one_thread() -> None:
    """One thread from now on, in torch and NumPy: sums depend on their number."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1, "blas")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3), in glibc's malloc.h
_LARGEST = 2**30


def keep_memory() -> None:
    """Have glibc keep freed blocks below 1 GiB. It gives large ones back, and each new one costs a page fault
    for every 4 KiB: a tenth of the time of runs that fold. Elsewhere nothing happens.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(option, _LARGEST)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C inside the block, where it can be ignored: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


HEAVY = ("torch", "scipy.special", "scipy.stats", "scipy.fft")
_LOCK = RLock()


def lazily(*names: str) -> None:
    """Import these modules at first use: `import torch` loads nothing, the first `torch.name` does.

    `from torch import Tensor` and `import torch.nn` are uses: where a scenario is read, such a line stands
    under TYPE_CHECKING. A library that is not there, or that has run already, is left alone.
    (`importlib.util.LazyLoader` runs a module as soon as a second one imports it.)
    """
    for name in [each for each in names if each not in sys.modules]:
        package = name.rpartition(".")[0]
        above = find_spec(package) if package else None  # `find_spec(name)` would run the package
        spec = PathFinder.find_spec(name, above.submodule_search_locations) if above else find_spec(name)
        if spec is None:
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


_SECONDS = 4.0


def check_reachable(address: str, field: str) -> None:
    """InputError on `field` unless something listens at `address`, host:port, perhaps after ray://. A word
    without a port, such as `auto`, is no address.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        hint = f"no Ray cluster answers there ({error}); must be host:port of a running one"
        raise InputError(field, address, hint) from None
