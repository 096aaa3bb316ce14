"""Code that others bring, as hashes: a plug-in that was edited is another one."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

NOT_THEIRS = {"fedsim", "", *sys.stdlib_module_names}


def packages(modules: Iterable[str]) -> list[str]:
    """Name and hash of each package of others that one of the modules is in, sorted."""
    tops = {module.partition(".")[0] for module in modules}
    return [_package(name) for name in sorted(tops - NOT_THEIRS)]


@lru_cache(maxsize=64)
def _package(name: str) -> str:
    spec = find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in sorted(Path(folder).rglob("*.py"))]
    if not files and spec and spec.origin and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    return name + hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
