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

from fedsim.algorithms.registry import algorithms
from fedsim.common.canonical import canonical
from fedsim.data.registry import data_sets
from fedsim.problems.registry import problems
from fedsim.scenario.files import digests
from fedsim.simulation.installed import packages
from fedsim.sweeps.cell import Cell

_NOT_RUN = tuple(f"fedsim/{room}/" for room in ("api", "attacks", "cli", "curves", "deployment", "report"))
"""Code that no cell runs."""

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pydantic")


def key_of(cell: Cell) -> str:
    """SHA-256 of the cell's fields, input files and all code, in hexadecimal."""
    made_of = [_files(cell.scenario), _installed(cell.scenario), code_version()]
    parts = [*cell, *made_of]
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def baselines_key(cell: Cell, depends_on: Mapping[str, Any]) -> str:
    """As `key_of`, of the baselines of a cell's trial, which depend on fewer fields."""
    made_of = [_files(cell.scenario), _installed(cell.scenario), code_version()]
    return hashlib.sha256(canonical([depends_on, cell.trial, *made_of]).encode()).hexdigest()


def _files(scenario: Mapping[str, Any]) -> list[str]:
    section = scenario["data"]
    data = data_sets()[section["name"]].model_validate(section)
    attendance = scenario.get("participation", {}).get("path")
    return list(digests(data, Path(attendance) if attendance else None).values())


def _installed(scenario: Mapping[str, Any]) -> list[str]:
    """Hashes of the packages of others that the cell runs: algorithm, problem, data set, network."""
    problem = scenario["problem"]
    parts: list[type] = [
        algorithms()[scenario["algorithm"]["name"]],
        problems()[problem["name"]],
        data_sets()[scenario["data"]["name"]],
    ]
    modules = [part.__module__ for part in parts]
    modules.append(problem.get("model", {}).get("path", "").partition(":")[0])
    return packages(modules)


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
