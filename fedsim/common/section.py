"""The base of every section of a scenario, and errors about its fields.

`complaint` turns pydantic's errors into ones that name a field as YAML does. Which fields a file may have
follows from its model's JSON schema: only those of the kinds that it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fedsim.common.choice import Choice, Node
from fedsim.common.errors import InputError, Refused, nearest, suggest

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema, ErrorDetails


class Section(BaseModel):
    """Frozen, finite, and strict about unknown keys; so are the plain dataclasses that stand in one.

    A field whose name in YAML is a method of pydantic's models, such as `schema`, has an alias: dumps use the
    alias and either name is read, so that a resolved scenario reads back.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Node:
        """The default of a choice, as one would write it by hand."""
        made = handler(schema)
        properties = handler.resolve_ref_schema(made)["properties"]
        for name, info in cls.model_fields.items():
            for choice in (each for each in info.metadata if isinstance(each, Choice)):
                properties[name]["default"] = {choice.key: choice.name(info.default)}
        return made


@contextmanager
def arguments(prefix: str = "") -> Iterator[None]:
    """Inside, an error about a model's field is an InputError on the argument, `prefix` before its name."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        field = prefix + ".".join(map(str, first["loc"]))
        raise InputError(field, first["input"], first["msg"].removeprefix("Value error, ")) from None


Path = list[str | int]

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_WORD, _NO_NUMBER = "literal_error", ("float_type", "float_parsing")
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

    It is what pydantic says of the `tree` of a file, called `root`, of a `model`, or of its part at `prefix`.
    """
    errors = error.errors(include_url=False)
    paths = [_path((*prefix, *each["loc"]), tree, each["type"]) for each in errors]
    place = min(range(len(errors)), key=lambda i: (_irrelevance(errors[i]), -len(paths[i])))
    first, path, kind = errors[place], paths[place], errors[place]["type"]
    field, context = ".".join(map(str, [root, *path])), first.get("ctx", {})
    if kind.startswith("union_tag"):
        key = context["discriminator"].strip("'")
        return _unknown_name(f"{field}.{key}", first["input"], key, names(path, key, tree, model))
    if kind == "value_error" and isinstance(found := context["error"], InputError):
        return InputError(f"{field}.{found.field}", found.value, found.hint)
    hint = _hint(first, path, lambda place: keys(place, tree, model))
    pairs = zip(errors, paths, strict=True) if kind in _NO_NUMBER else ()
    words = [each["ctx"]["expected"] for each, its in pairs if its == path and each["type"] == _WORD]
    return InputError(field, None if kind == "missing" else first["input"], ", or ".join([hint, *words]))


MANY = 1_000
S = TypeVar("S", bound=Section)


def settings(model: type[S], tree: Any, root: str, flags: Callable[[Any], Any] = lambda tree: tree) -> S:
    """Validate the settings of a file, plain mappings; file names are relative to the working directory.
    InputError, which calls the file `root`, if a field is wrong; `flags` takes fields out of a valid tree
    that may be true or false.
    """
    try:
        made = model.model_validate(tree)
    except ValidationError as error:
        raise complaint(error, tree, root, model) from None
    check_flags(flags(tree), made.model_dump(), root)
    return made


def check_few(error: ValidationError, what: str) -> None:
    """Refuse to go through a million things that are wrong in one message: that takes a gigabyte."""
    if (count := error.error_count()) > MANY:
        raise Refused(f"{what}: {count:,} things are wrong with it")


def validated(kind: type[S], part: str, given: Mapping[str, Any]) -> S:
    """A section of a scenario, which an offer has too; errors name its fields as in a scenario. InputError if
    a field is missing, unknown or out of bounds; Refused if `MANY` are.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        check_few(error, f"offer: {part}")
        raise complaint(error, {part: given}, "scenario", _offer_with(kind, part), (part,)) from None


@cache  # `_fields_of` caches each model: a new one for every offer would never be freed
def _offer_with(kind: type[Section], part: str) -> type[BaseModel]:
    """A model with this section alone."""
    model: type[BaseModel] = create_model("Offer", **{part: (kind, ...)})  # type: ignore[call-overload]
    return model


def check_flags(given: Any, understood: Any, field: str) -> None:
    """InputError on `field` where true or false was taken for the number 1 or 0."""
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
    return 2 if error["type"].endswith("_type") or error["type"] in (_WORD, "float_parsing") else 1


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


def _hint(error: ErrorDetails, path: Path, known_at: Callable[[Path], Sequence[str]]) -> str:
    """The hint of an error."""
    kind = error["type"]
    if kind in _UNKNOWN:
        return f"unknown key; {suggest(path[-1], known_at(path[:-1]))}"
    if kind in ("model_type", "dataclass_type", "dict_type"):
        known = known_at(path)
        return "must be a mapping" + (f" with keys such as {', '.join(known)}" if known else "")
    message = error["msg"].removeprefix("Value error, ").removesuffix(" after validation, not 0")
    message = message.replace("Tuple should have", "list should have")
    # pydantic writes all zeros
    message = re.sub(r"0\.0{8,}\d+", lambda found: f"{float(found[0]):g}", message)
    return _WANTED.get(kind, message[:1].lower() + message[1:])


def fields(tree: Any, model: type[BaseModel]) -> list[str]:
    """The dotted name of every field that may stand in the file `tree`, given or not."""
    return _fields_of(model).all(tree)


def keys(path: Sequence[str | int], tree: Any, model: type[BaseModel]) -> list[str]:
    """The keys that may stand in the mapping at `path`; none where no mapping may stand."""
    kinds = _fields_of(model).kinds_at(path, tree)
    return list(dict.fromkeys(key for kind in kinds for key in kind.get("properties", {})))


def names(path: Sequence[str | int], key: str, tree: Any, model: type[BaseModel]) -> list[str]:
    """The values that the discriminator `key` may take at `path`."""
    kinds = _fields_of(model).kinds_at(path, tree)
    return [kind["properties"][key]["const"] for kind in kinds if "properties" in kind]


@cache
def _fields_of(model: type[BaseModel]) -> _Fields:
    return _Fields(model.model_json_schema())


class _Fields:
    def __init__(self, schema: Node) -> None:
        self._schema = schema

    def all(self, tree: Any) -> list[str]:
        return list(dict.fromkeys(self._below(self._schema, tree, "")))

    def _below(self, node: Node, given: Any, prefix: str) -> Iterator[str]:
        for kind in self._kinds(node, given):
            for key, child in _children(kind, given).items():
                yield prefix + key
                yield from self._below(child, _item(given, key), f"{prefix}{key}.")

    def kinds_at(self, path: Sequence[str | int], tree: Any) -> list[Node]:
        found = self._kinds(self._schema, tree)
        for key in path:
            children = [{key: k["items"]} if "items" in k else _children(k, tree) for k in found]
            tree = _item(tree, key)
            found = [kind for each in children if key in each for kind in self._kinds(each[key], tree)]
        return found

    def _kinds(self, node: Node, given: Any) -> list[Node]:
        """A union's members, or the one that `given` names."""
        if "$ref" in node:
            return self._kinds(self._schema["$defs"][node["$ref"].rpartition("/")[2]], given)
        members = node.get("anyOf") or node.get("oneOf")
        found = [kind for member in members for kind in self._kinds(member, given)] if members else [node]
        return [kind for kind in found if _is_named(kind, given)] or found


def _is_named(kind: Node, given: Any) -> bool:
    constants = ((key, node["const"]) for key, node in kind.get("properties", {}).items() if "const" in node)
    return any(name in (given, _item(given, key)) for key, name in constants)


def _children(kind: Node, given: Any) -> dict[Any, Node]:
    """{key: schema} of a mapping's fields; free keys appear as given."""
    patterns = kind.get("patternProperties", {})  # of keys that must look like something
    free = next(iter(patterns.values()), kind.get("additionalProperties"))
    chosen = given if isinstance(free, dict) and isinstance(given, Mapping) else ()
    return {**dict.fromkeys(chosen, free), **kind.get("properties", {})}


def _item(given: Any, key: str | int) -> Any:
    given = dict(enumerate(given)) if isinstance(given, list | tuple) else given
    return given.get(key) if isinstance(given, Mapping) else None
