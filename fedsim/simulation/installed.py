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


def _package(name: str) -> str:
    spec = find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in sorted(Path(folder).rglob("*.py"))]
    if not files and spec and spec.origin and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    return name + _content(tuple((file, *_changed(file)) for file in files))


def _changed(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=64)
def _content(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Read once, and again after an edit: a notebook reloads modules that it has imported."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file, *_ in files)).hexdigest()
