"""Objects that were given in Python, by the plain values that stand for them in a scenario.

A sweep varies, hashes and sends plain values. Inside `standing`, and in its workers, those of an object are
read back as the object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, create_model

from fedsim.common.errors import InputError, suggest

_ANY = ConfigDict(arbitrary_types_allowed=True)
T = TypeVar("T")
_standing: dict[str, Any] = {}


@contextmanager
def standing(objects: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Inside, `objects` and what is added stand by their keys; afterwards what stood before."""
    before = dict(_standing)
    _standing.update(objects or {})
    try:
        yield
    finally:
        _standing.clear()
        _standing.update(before)


def stand(key: str, thing: Any) -> None:
    """Let an object stand by a key, also for processes that get `all_standing`."""
    _standing[key] = thing


def standing_by(key: str, kind: type[T]) -> T | None:
    """The object that stands by a key, if there is one of this class."""
    found = _standing.get(key)
    return found if isinstance(found, kind) else None


def all_standing() -> dict[str, Any]:
    """All objects by their keys."""
    return dict(_standing)


def changed(tree: Mapping[str, Any], own: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `tree` that differ from an object's own, as its types read them.

    InputError names a field that the object does not have, or whose value its type refuses.
    """
    result = {}
    for key in (key for key, value in tree.items() if key not in own or own[key] != value):
        if key not in types:
            raise InputError(key, tree[key], f"unknown key; {suggest(key, types)}")
        model = create_model("Given", __config__=_ANY, value=(types[key], ...))
        try:
            result[key] = dict(model(value=tree[key]))["value"]
        except ValidationError as error:
            raise InputError(key, tree[key], error.errors()[0]["msg"]) from None
    return result
