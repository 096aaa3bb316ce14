"""Read a scenario file: YAML, overrides, variants, validation, and errors that its author can act on.

Files that a scenario names are found relative to its folder, and their contents are hashed.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedsim.common.errors import InputError, suggest
from fedsim.common.files import placed
from fedsim.common.plugins import digest, file_of
from fedsim.common.section import complaint, fields, settings
from fedsim.common.serialise import from_yaml, mapping
from fedsim.data.dataset import Dataset
from fedsim.data.fetch import content, obtain
from fedsim.scenario.catalogue import find
from fedsim.scenario.model import ROOT, Scenario, SweepSection
from fedsim.scenario.participation import TracedSilos


def load(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in `path`, with `path.to.field=value` overrides applied.

    Relative file names in the `data` and `participation` sections are relative to the scenario file; those of
    `data` may also be in the data folder (`fedsim.common.files`). InputError names the first wrong field.
    """
    return parse(load_tree(path, overrides))


def load_tree(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a scenario as plain mappings, not validated yet; a sweep completes them."""
    path, changes = find(path), dict[str, Any]()
    for field, given in map(change, overrides):
        changes.pop(field, None)  # the last one counts, at its place
        changes[field] = given
    return anchored(completed(read(path), changes), path.resolve().parent)


def read(path: Path) -> dict[str, Any]:
    """The file's mapping, unchanged; InputError if it is unreadable."""
    return mapping(path, "scenario", "data:")


def parse(tree: Any) -> Scenario:
    """Validate plain mappings whose variant is chosen; InputError names the first wrong field."""
    scenario = settings(Scenario, tree, ROOT)
    if scenario.variants is not None:
        hint = "choose one of them first: fedsim.scenario.load.completed"
        raise InputError("scenario.variants", sorted(scenario.variants), hint)
    return scenario


def parse_sweep(section: Any) -> SweepSection:
    """Validate a `sweep` section alone: what it varies may complete a scenario that is not valid yet."""
    try:
        return SweepSection.model_validate(section)
    except ValidationError as error:
        raise complaint(error, {"sweep": section}, ROOT, Scenario, ("sweep",)) from None


def change(override: str, option: str = "--set") -> tuple[str, Any]:
    """The dotted field and the value of PATH=VALUE; InputError on the option if it is none."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise InputError(option, override, "must look like path.to.field=value")
    try:
        return path, from_yaml(text)
    except yaml.YAMLError:
        raise InputError(f"{option} {path}", text, "is not a YAML value") from None


def anchored(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A scenario with the file names in it made absolute; relative ones are relative to `folder`, which is
    absolute, and no symbolic link.

    What is not in `folder` may be in the data folder, and is downloaded there if the data set has an origin.
    The name of a data set on Hugging Face's hub stays as it is where no such folder exists.
    """

    def named(section: str, name: str) -> str:
        data = tree.get(section)
        fetched = isinstance(data, Mapping) and data.get("origin") is not None
        beside = _below(folder, Path(name))
        if section in CODE:  # a shipped scenario has no code of a user's beside it
            return str(beside if Path(file_of(str(beside)) or "").exists() else Path.cwd() / name)
        if section not in DATA:
            return str(beside)
        found = placed(beside, Path(name), fetched)
        return name if _on_hub(data) and not found.exists() else str(found)

    return dict(_renamed("", dict(tree), named))


def relative(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The inverse of `anchored`: a scenario to write into `folder`, without an absolute path in it."""

    def renamed(section: str, name: str) -> str:
        place = Path(name)  # a link is named, not what it leads to: that may have another suffix
        if section in DATA and _on_hub(tree.get(section)) and not place.is_absolute():
            return name
        return os.path.relpath(place.parent.resolve() / place.name, folder.resolve())

    return dict(_renamed("", dict(tree), renamed))


def _on_hub(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("name") == "huggingface"


def _below(folder: Path, name: Path) -> Path:
    while name.parts[:1] == ("..",):
        folder, name = folder.parent, Path(*name.parts[1:])
    return folder / name


DATA = ("data", "public")
FILES = {"data": ("path", "schema"), "public": ("path", "schema"), "participation": ("path",)}
"""Fields that name files, by section; `data.path` may name one for each silo."""


CODE = ("algorithm", "problem")  # sections whose `name` may be a file's class; `problem` is short for it

_CANDIDATES = re.compile(r"(.+)\.(?:one_of|tune(\..+))")
"""A list of candidates in a section that a sweep varies."""


def _renamed(field: str, value: Any, name_of: Callable[[str, str], str]) -> Any:
    """The dotted field's value with file names replaced, those that a sweep varies too."""
    section, _, key = field.partition(".")
    each_silos = section in DATA and key.startswith("path.")
    is_code = section in CODE and key in ("name", "") and file_of(value)
    if isinstance(value, str) and (is_code or each_silos or key in FILES.get(section, ())):
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


SWEPT = re.compile(r"(sweep\.(?:tune\.)?grid)\.(.+)")
"""A field of a sweep's grid, whose keys are dotted fields themselves."""


def apply(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the scenario `tree` with each of the fields set, in order; names as in `full_name`.

    >>> apply({"trials": 1, "algorithm": {"name": "prox_sgd"}}, {"trials": 3, "step_size": 0.5})
    {'trials': 3, 'algorithm': {'name': 'prox_sgd', 'step_size': 0.5}}
    """
    changed = copy.deepcopy(dict(tree))
    for name, value in changes.items():
        place(changed, full_name(changed, name, value), value)
    return changed


def full_name(tree: Mapping[str, Any], name: str, value: object = None) -> str:
    """The dotted field that `name` is, or is short for: the only given field that ends with it, else the only
    one of all fields. InputError, with the `value` that it is to get, if there is none or several.

    >>> full_name({}, "epsilon"), full_name({}, "privacy.epsilon"), full_name({}, "trials")
    ('privacy.epsilon', 'privacy.epsilon', 'trials')
    >>> full_name({}, "beta")
    Traceback (most recent call last):
    fedsim.common.errors.InputError: beta: None: could be any of problem.smoothing.beta, assumptions.beta
    >>> full_name({"assumptions": {"beta": 2.0}}, "beta")
    'assumptions.beta'
    >>> full_name({"problem": {"constraint": {"name": "l2_ball"}}}, "radius")
    'problem.constraint.radius'
    """
    if name.partition(".")[0] in Scenario.model_fields:
        return name
    known = list(dict.fromkeys([*fields(tree, Scenario), *_given(tree)]))  # a file's class has its own fields
    ends = [field for field in known if field.endswith(f".{name}")]  # public records' are named in full
    found = [field for field in ends if not field.startswith("public.") or _is_given(tree, field)]
    given = [field for field in found if _is_given(tree, field)]
    for only in (given, found):
        if len(only) == 1:
            return only[0]
    if found:
        raise InputError(name, value, f"could be any of {', '.join(given or found)}")
    last = [field.rpartition(".")[2] for field in known]
    hint = suggest(name, [*Scenario.model_fields, *dict.fromkeys(last), *known])
    raise InputError(f"scenario.{name}", value, f"no such field; {hint}")


def place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the dotted field `path`, making the mappings on the way."""
    swept = SWEPT.match(path)
    *parents, last = [*swept[1].split("."), swept[2]] if swept else path.split(".")
    for key in parents:
        branch = tree.get(key)
        if not isinstance(branch, dict):  # `participation: all` is short for a mapping with that name
            branch = tree[key] = {"name": branch} if isinstance(branch, str) else {}
        tree = branch
    tree[last] = value


def _given(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _given(value, f"{prefix}{key}.")


def _is_given(tree: Any, field: str) -> bool:
    for key in field.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


VARIANT, VARIANTS = "variant", "variants"


def completed(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario with the fields of its chosen variant set, then the changes, which may choose the variant.
    InputError if there is no such variant, or none is chosen; or as `apply`.

    >>> file = {"variant": "a", "trials": 1, "variants": {"a": {}, "b": {"trials": 20, "seed": 3}}}
    >>> completed(file, {"variant": "b", "seed": 4})
    {'variant': 'b', 'trials': 20, 'seed': 4}
    """
    rest = {key: value for key, value in tree.items() if key != VARIANTS}
    chosen = changes.get(VARIANT, tree.get(VARIANT))
    if tree.get(VARIANTS) is None:
        if VARIANT in changes and chosen != tree.get(VARIANT):
            raise InputError("scenario.variant", chosen, "this scenario has no variants to choose from")
        return apply(rest, changes)
    return apply(apply(rest, {VARIANT: chosen, **_of_variant(tree[VARIANTS], chosen)}), changes)


def _of_variant(variants: Any, chosen: Any) -> Mapping[str, Any]:
    """The chosen variant's {dotted field: value}."""
    if not isinstance(variants, Mapping) or not all(isinstance(one, Mapping) for one in variants.values()):
        raise InputError("scenario.variants", variants, "must be {name: {dotted.field: value}}")
    if chosen not in variants:
        names = list(map(str, variants))
        hint = f"choose one of {', '.join(names)}" if chosen is None else suggest(str(chosen), names)
        raise InputError("scenario.variant", chosen, hint)
    own: Mapping[str, Any] = variants[chosen]
    for name in (VARIANT, VARIANTS):
        if name in own:
            raise InputError(f"scenario.variants.{chosen}.{name}", own[name], "a variant sets other fields")
    return own


def digests(data: Dataset, attendance: Path | None, public: Dataset | None = None) -> dict[str, str]:
    """SHA-256 of every file that records or rounds depend on, by field; `attendance` is one of rounds."""
    named = _named(data, attendance, public)
    return {field: content(path, f"scenario.{field}") for field, path in named.items()}


def code_digests(scenario: Scenario) -> dict[str, str]:
    """SHA-256 of the files that its algorithm and problem are classes of, by field."""
    return {field: digest(file, f"scenario.{field}") for field, file in code_of(scenario).items()}


def digests_of(scenario: Scenario) -> dict[str, str]:
    """The digests of a scenario's files."""
    return digests(scenario.data, _attendance(scenario), scenario.public) | code_digests(scenario)


def check_unchanged(scenario: Scenario) -> None:
    """Check that the files are unchanged since the run that wrote this scenario, if it lists digests."""
    if not scenario.files:
        return
    obtain(scenario.data.downloads)
    code, named = code_digests(scenario), _named(scenario.data, _attendance(scenario), scenario.public)
    for field, before in scenario.files.items():
        path = named.get(field)
        now = code.get(field) if path is None else content(path, f"scenario.{field}")
        if now != before:
            file = Path(code_of(scenario)[field]) if path is None and now else path
            what = "no file is named there" if file is None else f"{file.name} has other contents"
            hint = f"of the file that this scenario was run with, and {what} now"
            raise InputError(f"scenario.files.{field}", before, f"{hint}; files=null runs it all the same")


def code_of(scenario: Scenario) -> dict[str, str]:
    """The files that its algorithm and problem are classes of, by field."""
    named = {f"{section}.name": file_of(dict(scenario)[section].name) for section in CODE}
    return {field: file for field, file in named.items() if file}


def _named(data: Dataset, attendance: Path | None, public: Dataset | None) -> dict[str, Path]:
    found = {f"data.{field}": path for field, path in data.files.items()}
    found |= {} if public is None else {f"public.{field}": path for field, path in public.files.items()}
    return found if attendance is None else {**found, "participation.path": attendance}


def _attendance(scenario: Scenario) -> Path | None:
    return scenario.participation.path if isinstance(scenario.participation, TracedSilos) else None
