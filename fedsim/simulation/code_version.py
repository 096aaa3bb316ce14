"""The version of the code that runs execute: of fedsim's own, and of what it calls."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

_NOT_RUN = tuple(f"fedsim/{room}/" for room in ("api", "cli", "deployment", "report", "testing/attacks"))
_RUN = ("fedsim/report/outcome.py", "fedsim/report/record.py")
"""Rooms whose code no cell runs, and the modules in them that cells run."""

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pydantic")


@lru_cache(maxsize=1)
def code_version() -> dict[str, str]:
    """Hash of the source that cells run, and the versions of what it calls."""
    digest = sha256()
    for name, file in _sources():
        digest.update(f"{name}\0".encode() + file.read_bytes() + b"\0")
    versions = {name: version(name) for name in _PACKAGES}
    return {"source": digest.hexdigest(), "python": platform.python_version(), **versions}


def _sources() -> Iterator[tuple[str, Path]]:
    for package in ("fedsim", "server", "shuffler", "silos"):
        (folder,) = importlib.import_module(package).__path__
        for file in sorted(Path(folder).rglob("*.py")):
            name = f"{package}/{file.relative_to(folder).as_posix()}"
            if name in _RUN or not name.startswith(_NOT_RUN):
                yield name, file
