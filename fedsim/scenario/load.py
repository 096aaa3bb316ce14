"""Read a scenario file: YAML, overrides, validation, and errors that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedsim.common.errors import InputError
from fedsim.scenario.catalogue import find
from fedsim.scenario.model import Scenario
from fedsim.scenario.sweep import SweepSection


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number: YAML 1.1 wants a dot in it and calls it text without one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("+-.0123456789")
)


def load(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in `path`, with `path.to.field=value` overrides applied.

    Relative file names in the `data` and `participation` sections are relative to the scenario file.

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
    tree = _read(path)
    for override in overrides:
        _set(tree, override)
    anchor(tree, path.resolve().parent)
    return tree


def parse(tree: Any) -> Scenario:
    """Validate a scenario given as plain mappings."""
    try:
        scenario = Scenario.model_validate(tree)
    except ValidationError as error:
        raise _input_error(error.errors(include_url=False)) from None
    _check_flags(tree, scenario.model_dump(by_alias=True), "scenario")
    return scenario


def _check_flags(given: Any, understood: Any, field: str) -> None:
    """Refuse true and false where they were taken for the numbers 1 and 0."""
    if isinstance(given, bool):
        if understood is not None and not isinstance(understood, bool):
            raise InputError(field, given, "must be a number, not true or false")
    elif isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            _check_flags(value, understood.get(key), f"{field}.{key}")
    elif isinstance(given, list | tuple) and isinstance(understood, list | tuple):
        for i, (value, meant) in enumerate(zip(given, understood, strict=False)):
            _check_flags(value, meant, f"{field}.{i}")


def parse_sweep(section: Any) -> SweepSection:
    """Validate a `sweep` section on its own: what it sweeps may complete a scenario that is not valid yet."""
    try:
        return SweepSection.model_validate(section)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        for each in errors:
            each["loc"] = ("sweep", *each["loc"])
        raise _input_error(errors) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError("scenario", str(path), f"cannot be read ({reason})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise InputError("scenario", str(path), f"{where}not valid YAML") from None
    if not isinstance(tree, dict):
        raise InputError("scenario", str(path), "must hold a mapping of sections such as `data:`")
    return tree


def _set(tree: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise InputError("--set", override, "must look like path.to.field=value")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise InputError(f"--set {path}", text, "is not a YAML value") from None
    place(tree, path, value)


def place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the dotted field `path`, making the mappings on the way."""
    swept = _SWEPT.match(path)  # the keys of a sweep's grid are dotted fields themselves
    *parents, last = [*swept[1].split("."), swept[2]] if swept else path.split(".")
    for key in parents:
        branch = tree.get(key)
        # `participation: all` is short for a mapping with that name.
        tree[key] = (
            {"name": branch} if isinstance(branch, str) else branch if isinstance(branch, dict) else {}
        )
        tree = tree[key]
    tree[last] = value


_SWEPT = re.compile(r"(sweep\.(?:tune\.)?grid)\.(.+)")


FILES = {"data": ("path", "schema"), "participation": ("path",)}
"""Fields that name files, by section."""


def anchor(tree: dict[str, Any], folder: Path) -> None:
    """Make the file names of a scenario absolute; relative ones are relative to `folder`."""
    for section in FILES:
        _anchor_section(section, tree.get(section), folder)
    sweep = tree.get("sweep")
    if not isinstance(sweep, dict):
        return
    for cell in _mappings(sweep.get("cells")):
        for field, value in cell.items():
            cell[field] = _anchored(field, value, folder)
    for grid in _mappings([sweep.get("grid")]):
        for field, values in grid.items():
            if isinstance(values, list):
                values[:] = [_anchored(field, value, folder) for value in values]


def _mappings(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _anchored(field: str, value: Any, folder: Path) -> Any:
    section, _, key = field.partition(".")
    if key in FILES.get(section, ()) and isinstance(value, str):
        return str(folder / value)
    if not key:
        _anchor_section(section, value, folder)
    return value


def _anchor_section(name: str, section: Any, folder: Path) -> None:
    for key in FILES.get(name, ()):
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = str(folder / section[key])


def _input_error(errors: Sequence[ErrorDetails]) -> InputError:
    """The first error, as one line; of a union's branches the one that got furthest is the relevant one."""
    error = min(errors, key=_irrelevance)
    field, model, options = _locate(error["loc"])
    if error["type"] == "extra_forbidden":
        return InputError(field, error["input"], _unknown_key(str(error["loc"][-1]), model))
    if error["type"] == "missing":
        return InputError(field, None, "is required")
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        key = str(error.get("ctx", {}).get("discriminator", "'name'")).strip("'")
        given = error["input"].get(key) if isinstance(error["input"], dict) else error["input"]
        return InputError(f"{field}.{key}", given, _known_tags(given, options))
    return InputError(field, error["input"], _wanted(error, model))


_IN_YAML = {"tuple_type": "must be a list", "path_type": "must be a file name"}


def _wanted(error: ErrorDetails, holder: type[BaseModel] | None) -> str:
    """What would be right, in the words of YAML rather than of Python."""
    if error["type"] in ("model_type", "dict_type"):
        field = holder.model_fields.get(str(error["loc"][-1])) if holder else None
        wanted = str(error.get("ctx", {}).get("class_name"))
        found = [kind for kind in _members(field.annotation) if _is(kind, wanted)] if field else []
        return "must be a mapping" + (f" with keys such as {', '.join(_keys(found[0]))}" if found else "")
    if error["type"] == "model_attributes_type":  # one of several kinds, told apart by name
        return "must be a mapping with the name of a kind and its fields"
    said = error["msg"].removeprefix("Value error, ").removesuffix(" after validation, not 0")
    said = said.replace("Tuple should have", "list should have")
    said = re.sub(r"0\.0{8,}\d+", lambda found: f"{float(found[0]):g}", said)  # pydantic writes all zeros
    return _IN_YAML.get(error["type"], said[:1].lower() + said[1:])


def _is(kind: Any, name: str) -> bool:
    return _is_model(kind) and kind.__name__ == name


def _is_model(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _keys(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _irrelevance(error: ErrorDetails) -> int:
    """Unknown keys first, then wrong values; a wrong type may only mean another branch of a union."""
    if error["type"] == "extra_forbidden":
        return 0
    return 2 if error["type"].endswith("_type") or error["type"] in ("literal_error", "float_parsing") else 1


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    known = _keys(model) if model else []
    close = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return f"unknown key; {hint}"


def _known_tags(tag: Any, options: Sequence[Any]) -> str:
    known = [literal for option in options if _is_model(option) and (literal := _literal(option))]
    close = get_close_matches(tag, known, n=1, cutoff=0.5) if isinstance(tag, str) else []
    return f"must be one of {', '.join(known)}" + (f"; did you mean {close[0]!r}?" if close else "")


def _locate(loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None, list[Any]]:
    """The dotted path without union tags, the model that holds the last key, and what may stand there."""
    path = ["scenario"]
    holder: type[BaseModel] | None = Scenario
    options: list[Any] = [Scenario]
    for part in loc:
        models = [option for option in options if _is_model(option)]
        tagged = [model for model in models if part in (_literal(model), model.__name__)]
        if tagged and (len(models) > 1 or models[0].__name__ == part):
            options = tagged
            holder = tagged[0]
        elif not _BRANCH.match(str(part)):
            holder = models[0] if len(models) == 1 else None
            info = (holder.model_fields.get(str(part)) or _by_alias(holder, part)) if holder else None
            path.append(str(part))
            # Behind a key of a mapping, or a place in a list, the same kinds are still possible.
            options = _members(info.annotation) if info else ([] if holder else options)
    return ".".join(path), holder, options


_BRANCH = re.compile(
    r"constrained-|(tuple|dict|list|literal|function-\w+)\[|(float|int|str|bool|inline|file)$"
)
"""What pydantic calls a branch of a plain union in an error's location."""


def _by_alias(model: type[BaseModel], part: int | str) -> Any:
    return next((info for info in model.model_fields.values() if info.alias == part), None)


def _literal(model: type[BaseModel]) -> str | None:
    for key in ("name", "sampler", "kind"):
        if key in model.model_fields:
            args = get_args(model.model_fields[key].annotation)
            return str(args[0]) if args else None
    return None


def _members(annotation: Any) -> list[Any]:
    args = get_args(annotation)
    return [member for arg in args for member in _members(arg)] if args else [annotation]
