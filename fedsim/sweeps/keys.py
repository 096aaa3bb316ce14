"""What a cell depends on, as a hash: equal keys mean equal results, on whatever machine or day."""

from __future__ import annotations

import hashlib
import importlib
import platform
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsim.common.canonical import canonical
from fedsim.data.registry import data_sets
from fedsim.scenario.files import digests
from fedsim.sweeps.cell import Cell

_NOT_RUN = tuple(f"fedsim/{room}/" for room in ("api", "attacks", "cli", "curves", "deployment", "report"))
"""Code that no cell runs."""

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pydantic")


def key_of(cell: Cell) -> str:
    """SHA-256 of the cell's fields, input files and fedsim's code, in hexadecimal.

    A cell with code of others has a nonce (`fedsim.scenario.nonce`), which no other sweep has.
    """
    parts = [*cell, _files(cell.scenario), code_version()]
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def baselines_key(cell: Cell, depends_on: Mapping[str, Any]) -> str:
    """As `key_of`, of the baselines of a cell's trial, which depend on fewer fields."""
    made_of = [cell.scenario.get("nonce"), _files(cell.scenario), code_version()]
    return hashlib.sha256(canonical([depends_on, cell.trial, *made_of]).encode()).hexdigest()


def _files(scenario: Mapping[str, Any]) -> list[str]:
    section = scenario["data"]
    data = data_sets()[section["name"]].model_validate(section)
    attendance = scenario.get("participation", {}).get("path")
    return list(digests(data, Path(attendance) if attendance else None).values())


@lru_cache(maxsize=1)
def code_version() -> dict[str, str]:
    """Hash of the source that cells run, and the versions of what it calls."""
    digest = hashlib.sha256()
    for name, file in _sources():
        digest.update(f"{name}\0".encode() + file.read_bytes() + b"\0")
    versions = {name: version(name) for name in _PACKAGES}
    return {"source": digest.hexdigest(), "python": platform.python_version(), **versions}


def _sources() -> Iterator[tuple[str, Path]]:
    for package in ("fedsim", "server", "silos"):
        (folder,) = importlib.import_module(package).__path__
        for file in sorted(Path(folder).rglob("*.py")):
            name = f"{package}/{file.relative_to(folder).as_posix()}"
            if not name.startswith(_NOT_RUN):
                yield name, file
