"""federation.yaml changed by command: its lines stay as a person wrote them, but for one silo's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import atomic_file, writing
from fedsim.deployment.federation_file import ROOT, SiloEntry, load_federation
from fedsim.deployment.flower.grid import node_keys

_SILOS = "silos:\n"


def add(file: Path, name: str, identity: Path, node: Path) -> None:
    """Add a silo to federation.yaml, with the files of its public keys; makes the file if there is none.
    InputError if name, identity or node are another silo's, or the federation would not be valid.
    """
    if file.exists() and name in load_federation(file, begun=True).silos:
        hint = "is in the federation already; to change its node's key: fedsim federation rekey"
        raise InputError("NAME", name, hint)
    lines = file.read_text(encoding="utf-8").splitlines(True) if file.exists() else []
    places = _places(file, lines)
    if not places and _SILOS not in lines:
        lines.append(_SILOS)
    after = max((end for _, end in places.values()), default=0) or lines.index(_SILOS) + 1
    entry = _entry(file, name, {"identity": identity, "node": node})
    _write(file, [*lines[:after], entry, *lines[after:]])


def rekey(file: Path, name: str, node: Path) -> bytes:
    """Give a silo's node another key; the old one, PEM. InputError as `add`, or the silo is not there."""
    silo, old = _known(file, name)
    given = {key: value for key in type(silo).model_fields if (value := getattr(silo, key)) is not None}
    _replace(file, name, [_entry(file, name, given | {"node": node})])
    return old


def remove(file: Path, name: str) -> bytes:
    """Take a silo out; its node's key, PEM. InputError if it is not there, or too few are left."""
    old = _known(file, name)[1]
    _replace(file, name, [])
    return old


def _replace(file: Path, name: str, entry: list[str]) -> None:
    lines = file.read_text(encoding="utf-8").splitlines(True)
    begin, end = _places(file, lines)[name]
    _write(file, [*lines[:begin], *entry, *lines[end:]])


def _known(file: Path, name: str) -> tuple[SiloEntry, bytes]:
    known = load_federation(file)
    if name not in known.silos:
        raise InputError("NAME", name, f"no silo of the federation; {suggest(name, list(known.silos))}")
    return known.silos[name], node_keys(known)[name]


def _places(file: Path, lines: list[str]) -> dict[str, tuple[int, int]]:
    """The lines [begin, end) of each silo's entry."""
    root = yaml.compose("".join(lines), yaml.SafeLoader)
    sections = {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    silos = sections.get("silos")
    if silos is None or silos.value == "":
        return {}
    if silos.flow_style:
        hint = "begin a line of its own for each silo below `silos:`, so that one can be changed by command"
        raise InputError(f"{ROOT}.silos", str(file), hint)
    return {key.value: (key.start_mark.line, _end(value)) for key, value in silos.value}


def _end(node: yaml.Node) -> int:
    """The line after a value; a block's own mark lies behind the comments that follow it."""
    while isinstance(node, yaml.MappingNode) and not node.flow_style:
        node = node.value[-1][1]
    return int(node.end_mark.line) + 1


def _entry(file: Path, name: str, fields: Mapping[str, Any]) -> str:
    """A silo's line; files are named relative to the federation's."""
    folder = file.resolve().parent
    named = {
        key: os.path.relpath(value.resolve(), folder) if isinstance(value, Path) else value
        for key, value in fields.items()
    }
    flow = yaml.safe_dump(named, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"  {yaml.safe_dump(name).splitlines()[0]}: {flow}\n"


def _write(file: Path, lines: list[str]) -> None:
    """Replace the file at once, where what is written is a federation whose keys are all there and apart."""
    with writing(file, "FEDERATION"), atomic_file(file) as draft:
        draft.write_text("".join(lines), encoding="utf-8")
        made = load_federation(draft)
        _ = made.identities, node_keys(made)
