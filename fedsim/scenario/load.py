"""Read a scenario file: YAML, overrides, validation, and errors that a person can act on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedsim.common.errors import InputError
from fedsim.common.files import placed
from fedsim.common.section import check_flags
from fedsim.common.serialise import mapping, value
from fedsim.scenario.catalogue import find
from fedsim.scenario.model import ROOT, Scenario, complaint
from fedsim.scenario.overrides import SWEPT, completed
from fedsim.scenario.sweep import SweepSection


def load(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in `path`, with `path.to.field=value` overrides applied.

    Relative file names in the `data` and `participation` sections are relative to the scenario file; those of
    `data` may also be in the data folder (`fedsim.common.files`).

    Raises:
        InputError: the file cannot be read, or a field is wrong; only the first wrong field is named.
    """
    return parse(load_tree(path, overrides))


def load_tree(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """As `load`, before validation: plain mappings, which a sweep completes.

    Raises:
        InputError: the file cannot be read, or an override is none.
    """
    path = find(path)
    changes: dict[str, Any] = {}
    for override in overrides:
        field, given = _change(override)
        changes.pop(field, None)  # the last one counts, at its place
        changes[field] = given
    return anchored(completed(read(path), changes), path.resolve().parent)


def read(path: Path) -> dict[str, Any]:
    """What the file holds, as it stands there.

    Raises:
        InputError: it cannot be read.
    """
    return mapping(path, "scenario", "data:")


def parse(tree: Any) -> Scenario:
    """Validate a scenario given as plain mappings.

    Raises:
        InputError: names the first field that is wrong; or it has variants, of which none was chosen.
    """
    try:
        scenario = Scenario.model_validate(tree)
    except ValidationError as error:
        raise complaint(error, tree) from None
    if scenario.variants is not None:
        hint = "choose one of them first: fedsim.scenario.overrides.completed"
        raise InputError("scenario.variants", sorted(scenario.variants), hint)
    check_flags(tree, scenario.model_dump(), ROOT)
    return scenario


def parse_sweep(section: Any) -> SweepSection:
    """Validate a `sweep` section on its own: what it sweeps may complete a scenario that is not valid yet."""
    try:
        return SweepSection.model_validate(section)
    except ValidationError as error:
        raise complaint(error, {"sweep": section}, ("sweep",)) from None


def _change(override: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise InputError("--set", override, "must look like path.to.field=value")
    try:
        return path, value(text)
    except yaml.YAMLError:
        raise InputError(f"--set {path}", text, "is not a YAML value") from None


def anchored(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A scenario with the file names in it made absolute.

    What is not in `folder` may be in the data folder, and is downloaded there where the data say from where.

    Args:
        tree: nested mappings.
        folder: what relative names are relative to; absolute, and no symbolic link.
    """
    data = tree.get("data")
    fetched = isinstance(data, Mapping) and data.get("origin") is not None

    def named(section: str, name: str) -> str:
        beside = _below(folder, Path(name))
        return str(placed(beside, Path(name), fetched) if section == "data" else beside)

    return dict(_renamed("", dict(tree), named))


def relative(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The inverse of `anchored`: a scenario to write into `folder`, without an absolute path in it."""

    def renamed(section: str, name: str) -> str:
        place = Path(name)  # a link is named, not what it leads to: that may have another suffix
        return os.path.relpath(place.parent.resolve() / place.name, folder.resolve())

    return dict(_renamed("", dict(tree), renamed))


def _below(folder: Path, name: Path) -> Path:
    while name.parts[:1] == ("..",):
        folder, name = folder.parent, Path(*name.parts[1:])
    return folder / name


FILES = {"data": ("path", "schema"), "participation": ("path",)}
"""Fields that name files, by section; `data.path` may name one for each silo."""


_CANDIDATES = re.compile(r"(.+)\.(?:one_of|tune(\..+))")
"""A list of candidates in a section that a sweep varies."""


def _renamed(field: str, value: Any, name_of: Callable[[str, str], str]) -> Any:
    """The dotted field's value with file names replaced, those that a sweep varies too."""
    section, _, key = field.partition(".")
    each_silos = section == "data" and key.startswith("path.")
    if isinstance(value, str) and (each_silos or key in FILES.get(section, ())):
        return name_of(section, value)
    if isinstance(value, list) and field == "sweep.cells":
        return [_renamed("", cell, name_of) for cell in value]
    if isinstance(value, list) and (swept := SWEPT.match(field)):
        return [_renamed(swept[2], each, name_of) for each in value]
    if isinstance(value, list) and (own := _CANDIDATES.fullmatch(field)):
        return [_renamed(own[1] + (own[2] or ""), each, name_of) for each in value]
    if isinstance(value, dict):
        return {k: _renamed(f"{field}.{k}" if field else str(k), each, name_of) for k, each in value.items()}
    return value
