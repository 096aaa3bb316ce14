"""What is wrong with a file, in its own words: pydantic's errors name no field as YAML does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedsim.common.errors import InputError
from fedsim.common.model_fields import keys, names
from fedsim.common.suggest import nearest, suggest

Path = list[str | int]

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_WANTED = {
    "tuple_type": "must be a list",
    "path_type": "must be a file name",
    "missing": "is required",
    "model_attributes_type": "must be a mapping with the name of a kind and its fields",
}


def complaint(
    error: ValidationError, tree: Any, root: str, model: type[BaseModel], prefix: tuple[str, ...] = ()
) -> InputError:
    """The first error, as one line; of a union's branches the one that got furthest is the relevant one.

    Args:
        error: what pydantic says of the file's `tree`, or of its part at `prefix`.
        tree: the file as it was given.
        root: what the file is called.
        model: of the whole file.
        prefix: where the validated part stands.
    """
    first = min(error.errors(include_url=False), key=_irrelevance)
    kind, path = first["type"], _path((*prefix, *first["loc"]), tree, first["type"])
    field, context = ".".join(map(str, [root, *path])), first.get("ctx", {})
    if kind.startswith("union_tag"):
        key = context["discriminator"].strip("'")
        return _unknown_name(f"{field}.{key}", first["input"], key, names(path, key, tree, model))
    if kind == "value_error" and isinstance(found := context["error"], InputError):
        return InputError(f"{field}.{found.field}", found.value, found.expected)
    return InputError(
        field,
        None if kind == "missing" else first["input"],
        _expected(first, path, lambda place: keys(place, tree, model)),
    )


def check_flags(given: Any, understood: Any, field: str) -> None:
    """Refuse true and false where they were taken for the numbers 1 and 0.

    Raises:
        InputError: names the field.
    """
    if isinstance(given, bool):
        if understood is not None and not isinstance(understood, bool):
            raise InputError(field, given, "must be a number, not true or false")
    elif isinstance(given, dict) and isinstance(understood, dict):
        for key, value in given.items():
            check_flags(value, understood.get(key), f"{field}.{key}")
    elif isinstance(given, list | tuple) and isinstance(understood, list | tuple):
        for i, (value, meant) in enumerate(zip(given, understood, strict=False)):
            check_flags(value, meant, f"{field}.{i}")


def _irrelevance(error: ErrorDetails) -> int:
    """Unknown keys first, then wrong values; a wrong type may only mean another branch of a union."""
    if error["type"] in _UNKNOWN:
        return 0
    return 2 if error["type"].endswith("_type") or error["type"] in ("literal_error", "float_parsing") else 1


def _path(loc: tuple[str | int, ...], tree: Any, kind: str) -> Path:
    """The parts of a location that stand in the tree; the others are pydantic's, of a union's branches."""
    path: Path = []
    for i, part in enumerate(loc):
        held: Any = {"name": tree} if isinstance(tree, str) else tree
        held = dict(enumerate(held)) if isinstance(held, list | tuple) else held
        found = isinstance(held, Mapping) and part in held
        if found or (kind == "missing" and i == len(loc) - 1):
            path.append(part)
        tree = held[part] if found else tree
    return path


def _unknown_name(field: str, given: Any, key: str, known: Sequence[str]) -> InputError:
    name = given.get(key) if isinstance(given, Mapping) else given
    close = nearest(name, known) if isinstance(name, str) else None
    hint = f"; did you mean {close!r}?" if close else ""
    return InputError(field, name, f"must be one of {', '.join(known)}{hint}")


def _expected(error: ErrorDetails, path: Path, known_at: Callable[[Path], Sequence[str]]) -> str:
    """What would be right."""
    kind = error["type"]
    if kind in _UNKNOWN:
        return f"unknown key; {suggest(path[-1], known_at(path[:-1]))}"
    if kind in ("model_type", "dataclass_type", "dict_type"):
        known = known_at(path)
        return "must be a mapping" + (f" with keys such as {', '.join(known)}" if known else "")
    said = error["msg"].removeprefix("Value error, ").removesuffix(" after validation, not 0")
    said = said.replace("Tuple should have", "list should have")
    said = re.sub(r"0\.0{8,}\d+", lambda found: f"{float(found[0]):g}", said)  # pydantic writes all zeros
    return _WANTED.get(kind, said[:1].lower() + said[1:])
