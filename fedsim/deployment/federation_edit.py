"""federation.yaml changed by command: its lines stay as they were written, but for one silo's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import yaml

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError, suggest
from fedsim.common.files import writing
from fedsim.deployment.federation_file import ROOT, SiloEntry, load_federation
from fedsim.deployment.node_keys import node_key, node_keys


def add(file: Path, name: str, identity: Path, node: Path) -> None:
    """Add a silo to federation.yaml, with the files of its public keys; makes the file if there is none.
    InputError if name, identity or node are another silo's, or the federation would not be valid.
    """
    if file.exists() and name in load_federation(file, begun=True).silos:
        hint = "is in the federation already; to change its node's key: fedsim federation rekey"
        raise InputError("NAME", name, hint)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = (f"{text}\n" if text and not text.endswith("\n") else text).splitlines(True)
    places = _places(file, lines)
    if not places:
        lines.append("silos:\n")
    after = max((end for _, end in places.values()), default=len(lines))
    entry = _entry(file, name, {"identity": identity, "node": node})
    with _written(file, [*lines[:after], entry, *lines[after:]]):
        pass


@contextmanager
def rekey(file: Path, name: str, node: Path) -> Iterator[bytes]:
    """Give a silo's node another key, once the block ends well; yields the old one, PEM. InputError as `add`,
    the silo is not there, or has that key.
    """
    silo, old = _known(file, name)
    if node_key(node) == old:
        raise InputError("--node", str(node), "is its node's key already; name another")
    given = {key: value for key, value in silo if value is not None}
    with _replaced(file, name, [_entry(file, name, given | {"node": node})]):
        yield old


@contextmanager
def remove(file: Path, name: str) -> Iterator[bytes]:
    """Take a silo out, once the block ends well; yields its node's key, PEM. InputError if it is not there,
    or none is left.
    """
    old = _known(file, name)[1]
    with _replaced(file, name, []):
        yield old


def _replaced(file: Path, name: str, entry: list[str]) -> AbstractContextManager[None]:
    lines = file.read_text(encoding="utf-8").splitlines(True)
    begin, end = _places(file, lines)[name]
    return _written(file, [*lines[:begin], *entry, *lines[end:]])


def _known(file: Path, name: str) -> tuple[SiloEntry, bytes]:
    known = load_federation(file)
    if name not in known.silos:
        raise InputError("NAME", name, f"no silo of the federation; {suggest(name, list(known.silos))}")
    return known.silos[name], node_keys(known)[name]


def _places(file: Path, lines: list[str]) -> dict[str | None, tuple[int, int]]:
    """The lines [begin, end) of each silo's entry, and of the line above them (None)."""
    root = yaml.compose("".join(lines), yaml.SafeLoader)
    sections = {key.value: (key, value) for key, value in root.value} if root is not None else {}
    if "silos" not in sections:
        return {}
    head, silos = sections["silos"]
    above: dict[str | None, tuple[int, int]] = {None: (head.start_mark.line, head.start_mark.line + 1)}
    if silos.value == "":
        return above
    if not isinstance(silos, yaml.MappingNode) or silos.flow_style:
        hint = "begin a line of its own for each silo below `silos:`, so that one can be changed by command"
        raise InputError(f"{ROOT}.silos", str(file), hint)
    return above | {key.value: (key.start_mark.line, _end(value)) for key, value in silos.value}


def _end(node: yaml.Node) -> int:
    """The line after a value; a block's own mark lies behind the comments that follow it."""
    while isinstance(node, yaml.MappingNode) and not node.flow_style:
        node = node.value[-1][1]
    return int(node.end_mark.line) + 1


def _entry(file: Path, name: str, fields: Mapping[str, Any]) -> str:
    """A silo's line; files are named relative to the federation's."""
    own = relative_to(file, fields)
    flow = yaml.safe_dump(own, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"  {yaml.safe_dump(name, width=10_000).splitlines()[0]}: {flow}\n"


def relative_to(file: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a federation's file, with paths as that file names them."""
    folder = file.resolve().parent
    return {
        key: os.path.relpath(value.resolve(), folder) if isinstance(value, Path) else value
        for key, value in fields.items()
    }


@contextmanager
def _written(file: Path, lines: list[str]) -> Iterator[None]:
    """Replace the file once the block ends well; what is written is a federation with all keys, each once."""
    with writing(file, "FEDERATION"), atomic_file(file) as draft:
        draft.write_text("".join(lines), encoding="utf-8")
        made = load_federation(draft)
        _ = made.identities, node_keys(made)
        yield
