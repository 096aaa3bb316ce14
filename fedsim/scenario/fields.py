"""Which fields a scenario may have, by its JSON schema: only those of the kinds that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from fedsim.scenario.model import Scenario

Node = dict[str, Any]


def fields(tree: Any) -> list[str]:
    """The dotted name of every field that may stand in the scenario `tree`, given or not.

    >>> found = fields({"problem": {"constraint": {"name": "l2_ball"}}})
    >>> [name for name in found if name.startswith("problem.constraint.")]
    ['problem.constraint.name', 'problem.constraint.radius']
    """
    return list(dict.fromkeys(_below(_schema(), tree, "")))


def keys(path: Sequence[str | int], tree: Any) -> list[str]:
    """The keys that may stand in the mapping at `path`; none where no mapping may stand."""
    return list(dict.fromkeys(key for kind in _kinds_at(path, tree) for key in kind.get("properties", {})))


def names(path: Sequence[str | int], key: str, tree: Any) -> list[str]:
    """What `key`, by which kinds are told apart at `path`, may be."""
    return [kind["properties"][key]["const"] for kind in _kinds_at(path, tree) if "properties" in kind]


@cache
def _schema() -> Node:
    return Scenario.model_json_schema()


def _below(node: Node, given: Any, prefix: str) -> Iterator[str]:
    for kind in _kinds(node, given):
        for key, child in _children(kind, given).items():
            yield prefix + key
            yield from _below(child, _item(given, key), f"{prefix}{key}.")


def _kinds_at(path: Sequence[str | int], tree: Any) -> list[Node]:
    found = _kinds(_schema(), tree)
    for key in path:
        children = [_children(kind, tree) for kind in found]
        tree = _item(tree, key)
        found = [kind for each in children if key in each for kind in _kinds(each[key], tree)]
    return found


def _kinds(node: Node, given: Any) -> list[Node]:
    """A union's members, or the one that `given` names."""
    if "$ref" in node:
        return _kinds(_schema()["$defs"][node["$ref"].rpartition("/")[2]], given)
    members = node.get("anyOf") or node.get("oneOf")
    found = [kind for member in members for kind in _kinds(member, given)] if members else [node]
    return [kind for kind in found if _is_named(kind, given)] or found


def _is_named(kind: Node, given: Any) -> bool:
    constants = ((key, node["const"]) for key, node in kind.get("properties", {}).items() if "const" in node)
    return any(name in (given, _item(given, key)) for key, name in constants)


def _children(kind: Node, given: Any) -> dict[Any, Node]:
    """What may stand in a mapping, by its key; a key that the person chooses is there where it is given."""
    free = kind.get("additionalProperties")
    chosen = given if isinstance(free, dict) and isinstance(given, Mapping) else ()
    return {**dict.fromkeys(chosen, free), **kind.get("properties", {})}


def _item(given: Any, key: str | int) -> Any:
    return given.get(key) if isinstance(given, Mapping) else None
