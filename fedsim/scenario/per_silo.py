"""Fields with a value for each silo: one for all, a list in order of names, or a map by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from fedsim.common.errors import InputError

T = TypeVar("T")
PerSilo: TypeAlias = T | tuple[T, ...] | dict[str, T]


def per_silo(field: str, value: Any, names: Sequence[str]) -> tuple[float, ...]:
    """The values in order of `names`; `value` is a `PerSilo[float]`.

    >>> per_silo("scenario.privacy.epsilon", {"north": 1.0, "south": 2.0}, ["south", "north"])
    (2.0, 1.0)

    Raises:
        InputError: a silo has no value, or a value no silo.
    """
    if isinstance(value, float | int):
        return (float(value),) * len(names)
    if isinstance(value, dict):
        _check_keys(field, value, names)
        return tuple(value[name] for name in names)
    if len(value) != len(names):
        expected = f"one value a silo: {len(names)}, not {len(value)}; their order: {_shortened(names)}"
        raise InputError(field, list(value), expected)
    return tuple(value)


def _check_keys(field: str, value: Mapping[str, float], names: Sequence[str]) -> None:
    known = set(names)
    for name in value:
        if name not in known:
            raise InputError(f"{field}.{name}", value[name], f"no such silo; silos: {_shortened(names)}")
    missing = [name for name in names if name not in value]
    if missing:
        raise InputError(field, value, f"no value for {_shortened(missing)}")


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
