"""What a combination is called in tables, figures and progress lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedsim.common.serialise import canonical


def title(varied: Mapping[str, Any], private: bool, without: Collection[str | None] = ()) -> str:
    """The varied fields but those in `without`.

    >>> title({"algorithm": "local_sgd", "privacy.epsilon": 1.5}, private=True)
    'local_sgd, epsilon=1.5'
    >>> title({"algorithm": "local_sgd", "privacy.epsilon": 1.5}, False, without=["privacy.epsilon"])
    'local_sgd (non-private)'
    """
    parts = [_part(field, value) for field, value in varied.items() if field not in without]
    return ", ".join(parts or ["the scenario"]) + ("" if private else " (non-private)")


def _part(field: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{last_part(field)}={_number(value)}"


def last_part(field: str) -> str:
    """Of a dotted field: `epsilon` of `privacy.epsilon`."""
    return field.rpartition(".")[2]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int) else canonical(value)
