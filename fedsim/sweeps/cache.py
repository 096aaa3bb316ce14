"""Finished cells by the hash of all that they depend on: in memory, or on disk as one JSON file each."""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from fedsim.common.files import whole_file
from fedsim.common.serialise import canonical
from fedsim.data.registry import data_sets
from fedsim.scenario.files import digests
from fedsim.sweeps.cell import Cell, CellResult

FORMAT = "fedsim cell 2"


class Memory(dict[str, CellResult]):
    """Results by key, in memory."""

    def put(self, key: str, cell: Cell, result: CellResult) -> None:
        """Keep a result."""
        self[key] = result


class Folder:
    """Results by key, in `folder`; `tell` is told of every entry that had to be set aside."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder, self._tell = folder, tell
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> CellResult | None:
        """The result of this key; None where there is none, or none that can be trusted."""
        file = self._file(key)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            self._set_aside(file, f"cannot be read ({error})")
            return None
        try:
            return _result(text, key)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._set_aside(file, str(error))
            return None

    def put(self, key: str, cell: Cell, result: CellResult) -> None:
        """Store a result with what it came from; a reader sees the whole entry or none."""
        values = asdict(result) | {"epsilon": None if result.epsilon == inf else result.epsilon}
        content = {"scenario": cell.scenario, "trial": cell.trial, "result": values}
        entry = {"format": FORMAT, "key": key, "sha256": _digest(content), **content}
        with whole_file(self._file(key), sync=False) as draft:  # it is checked when it is read
            draft.write_text(json.dumps(entry, allow_nan=False), encoding="utf-8")

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _set_aside(self, file: Path, why: str) -> None:
        aside = file.with_suffix(".bad")
        count = 1
        while aside.exists():
            aside, count = file.with_suffix(f".{count}.bad"), count + 1
        file.rename(aside)
        self._tell(f"{file}: {why}; kept as {aside.name}, and the cell is run again")


def _result(text: str, key: str) -> CellResult:
    try:
        entry = json.loads(text)
    except ValueError:
        raise ValueError("half-written or not JSON") from None
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        found = entry.get("format") if isinstance(entry, dict) else None
        raise ValueError(f"an entry of another format, {found!r} and not {FORMAT!r}")
    if entry.get("key") != key:
        raise ValueError("a foreign entry: its key is another than its name")
    content = {name: entry.get(name) for name in ("scenario", "trial", "result")}
    if entry.get("sha256") != _digest(content):
        raise ValueError("its content was changed after it was written")
    values = content["result"]
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(CellResult)}:
        raise ValueError("a result with other fields than this version's")
    return CellResult(**values | {"epsilon": inf if values["epsilon"] is None else values["epsilon"]})


def _digest(content: Any) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()


_NOT_RUN = tuple(f"fedsim/{room}/" for room in ("api", "attacks", "cli", "curves", "deployment", "report"))
"""Code that no cell runs."""

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pyarrow", "pydantic")


def key_of(cell: Cell) -> str:
    """SHA-256 of the cell's fields, input files and fedsim's code, in hexadecimal.

    A cell with code of others has a nonce (`fedsim.scenario.nonce`), which no other sweep has.
    """
    return _digest([*cell, _files(cell.scenario), code_version()])


def baselines_key(cell: Cell, depends_on: Mapping[str, Any]) -> str:
    """As `key_of`, of the baselines of a cell's trial, which depend on fewer fields."""
    nonce = cell.scenario.get("nonce")
    return _digest([depends_on, cell.trial, nonce, _files(cell.scenario), code_version()])


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
