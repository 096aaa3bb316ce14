"""Which fields a file may have, by its model's JSON schema: only those of the kinds that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

Node = dict[str, Any]


def fields(tree: Any, model: type[BaseModel]) -> list[str]:
    """The dotted name of every field that may stand in the file `tree`, given or not."""
    return _fields_of(model).all(tree)


def keys(path: Sequence[str | int], tree: Any, model: type[BaseModel]) -> list[str]:
    """The keys that may stand in the mapping at `path`; none where no mapping may stand."""
    kinds = _fields_of(model).kinds_at(path, tree)
    return list(dict.fromkeys(key for kind in kinds for key in kind.get("properties", {})))


def nodes(path: Sequence[str | int], tree: Any, model: type[BaseModel]) -> dict[str, Node]:
    """{key: JSON schema} of what may stand in the mapping at `path`, of the kind that is named there."""
    kinds = _fields_of(model).kinds_at(path, tree)
    found: Node = next((kind["properties"] for kind in kinds if "properties" in kind), {})
    return dict(sorted(found.items(), key=lambda item: "const" not in item[1]))  # the name first


def names(path: Sequence[str | int], key: str, tree: Any, model: type[BaseModel]) -> list[str]:
    """What `key`, by which kinds are told apart at `path`, may be."""
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
            children = [_children(kind, tree) for kind in found]
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
    """What may stand in a mapping, by its key; a key that the person chooses is there where it is given."""
    patterns = kind.get("patternProperties", {})  # of keys that must look like something
    free = next(iter(patterns.values()), kind.get("additionalProperties"))
    chosen = given if isinstance(free, dict) and isinstance(given, Mapping) else ()
    return {**dict.fromkeys(chosen, free), **kind.get("properties", {})}


def _item(given: Any, key: str | int) -> Any:
    return given.get(key) if isinstance(given, Mapping) else None
