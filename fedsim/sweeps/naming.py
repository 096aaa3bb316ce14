"""How a combination is called in tables, figures and progress lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedsim.sweeps.keys import canonical


def title(varied: Mapping[str, Any], private: bool, without: Collection[str] = ()) -> str:
    """`local_sgd, epsilon=1.5`: the varied fields but those in `without`."""
    parts = [_part(field, value) for field, value in varied.items() if field not in without]
    return ", ".join(parts or ["the scenario"]) + ("" if private else " (non-private)")


def _part(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{field.split('.')[-1]}={_number(value)}"


def _number(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else str(value)
        if isinstance(value, int)
        else canonical(value)
    )
