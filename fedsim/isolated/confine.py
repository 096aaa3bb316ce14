"""Child processes that run plug-in code, and what the kernel keeps from them.

A child has a root folder of its own with this Python installation and the plug-ins, read-only, no network,
no privileges, two pipes, no other descriptor, and a list of system calls (`fedsim.isolated.confined`). It is
exec'd by `subprocess`: no memory of the process that starts it is ever in it. Where the kernel does not allow
all of this, `start` refuses.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import Any, Self

from fedsim.common.errors import InputError, Refused
from fedsim.isolated import confined

CHILD = "fedsim.isolated.child"
"""The module that a child of a silo or a simulation runs; nothing here imports it."""

_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/",  # a folder that exists; else torch looks for one to write in
}
_PACKAGES = ("fedsim", "silos")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_OPTIONS = ("-s", "-S", "-P", "-B")  # no folder of the user, of .pth files or of the script; no .pyc


@dataclass(frozen=True)
class Limits:
    """Resource limits of a child: bytes of address space, seconds of processor time in all, open files."""

    memory_bytes: int = 8 << 30
    cpu_s: int = 3600
    open_files: int = 64


class Child:
    """A running child. Its pipes are unbuffered; a context manager that ends it."""

    def __init__(self, process: Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout  # its descriptors 0 and 1
        self.pid, self._process = process.pid, process

    def kill(self) -> None:
        """End it; without effect where it has ended."""
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it. TimeoutExpired if it has not ended by then."""
        return self._process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self.stdin.close()
        self.stdout.close()


def start(
    argv: Sequence[str], plug_ins: Path | None, limits: Limits | None = None, hidden: Sequence[Path] = ()
) -> Child:
    """A confined child that runs the module `argv[0]` as `python -m` does, with the rest as arguments, which
    any process of this machine can read.

    `plug_ins` is the folder of plug-ins (`pip install --target`), last on the child's path. InputError if it
    is no folder, or the child would see the `hidden` files and folders (records, state, keys); Refused if the
    kernel does not allow the confinement, with the step.
    """
    limits = limits or Limits()
    if plug_ins and not plug_ins.is_dir():
        raise InputError("plug_ins", str(plug_ins), "must be a folder")
    binds, path = _seen(plug_ins)
    for each in hidden:
        place = each.resolve()
        if any(place.is_relative_to(source) or Path(source).is_relative_to(place) for source, _ in binds):
            raise InputError("plug_ins", str(each), "must lie outside of what plug-ins see")
    resources = {"AS": limits.memory_bytes, "CPU": limits.cpu_s, "NOFILE": limits.open_files}
    plan = {
        "parent": os.getpid(),
        "binds": binds,
        "path": path,
        "limits": resources | {"NPROC": 0, "FSIZE": 0, "CORE": 0},
        "argv": list(argv),
    }
    born: Future[Popen[bytes]] = Future()
    # The kernel ends a child with the *thread* that started it, so that thread waits for the child's end.
    command = [sys.executable, *_OPTIONS, confined.__file__, json.dumps(plan)]
    Thread(target=_keep, args=(command, born), daemon=True).start()
    child = Child(born.result())
    first = child.stdout.read(1)
    if first != confined.READY:
        with child:
            reason = ((first or b"") + child.stdout.read()).decode(errors="replace")
        raise Refused(f"plug-ins cannot be confined here: {reason or 'Python did not start'}")
    return child


def unavailable() -> str | None:
    """Why this kernel cannot confine a child; None where it can. Starts one."""
    try:
        with start(["this"], None):
            return None
    except Refused as error:
        return str(error)


def _keep(command: list[str], born: Future[Popen[bytes]]) -> None:
    try:
        process: Popen[Any] = Popen(
            command, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_ENVIRONMENT, cwd="/"
        )
    except OSError as error:
        born.set_exception(Refused(f"plug-ins cannot be confined here: {error.strerror}"))
        return
    born.set_result(process)
    process.wait()


def _seen(plug_ins: Path | None) -> tuple[list[tuple[str, str]], list[str]]:
    """([(real folder, folder that the child sees)], folders of modules besides the standard library's)."""
    installed = [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    packages = [Path(str(spec.origin)).parent for spec in map(find_spec, _PACKAGES) if spec]
    paths = sysconfig.get_paths()
    seen = {
        *_LIBRARIES,
        *(str(Path(sys.base_prefix, name)) for name in ("lib", "lib64")),
        *(paths[name] for name in ("stdlib", "platstdlib")),
        *(*installed, *map(str, packages)),
        *([str(plug_ins.absolute())] if plug_ins else []),
    }
    binds: list[tuple[str, str]] = []
    for target in sorted(seen):  # an outer folder comes first
        source = os.path.realpath(target)
        inside = any(Path(target).is_relative_to(outer) and source == target for _, outer in binds)
        if os.path.isdir(source) and not inside:
            binds.append((source, target))
    path = [*installed, *{str(package.parent) for package in packages}]
    return binds, [*dict.fromkeys(path), *([str(plug_ins.absolute())] if plug_ins else [])]
