"""Short names for the values of a varied field: what tables and figures call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsim.common.canonical import canonical
from fedsim.common.errors import InputError
from fedsim.curves.sweep_summary import Label
from fedsim.scenario.sweep import Choices, SweepSection


def labels(section: SweepSection) -> dict[str, dict[str, Label]]:
    """For each varied field {canonical value: label}; labels of one field are distinct.

    Raises:
        InputError: two values were given one label.
    """
    values: dict[str, list[Any]] = {field: list(listed) for field, listed in section.grid.items()}
    for cell in section.cells:
        for field, value in cell.items():
            known = {canonical(v) for v in values.setdefault(field, [])}
            if canonical(value) not in known:
                values[field].append(value)
    return {field: of_field(field, listed) for field, listed in values.items()}


def of_field(field: str, values: Sequence[Any]) -> dict[str, Label]:
    """{canonical value: label} of one field's values.

    Raises:
        InputError: as `labels`.
    """
    named = [_own(value) for value in values]
    clashing = {name for name in named if named.count(name) > 1}
    found = {
        canonical(value): _with_differences(value, values) if name in clashing else name
        for value, name in zip(values, named, strict=True)
    }
    if len(set(map(canonical, found.values()))) < len(found):
        raise InputError(
            f"scenario.sweep.grid.{field}", sorted(map(str, clashing)), "give each value a label of its own"
        )
    return found


def _own(value: Any) -> Label:
    """The label given, the section's name or those of its alternatives, or the value itself."""
    if isinstance(value, dict):
        if "one_of" in value and "label" not in value:
            return " or ".join(str(_own(one)) for one in value["one_of"])
        return str(value.get("label", value.get("name", value.get("sampler", canonical(value)))))
    return value if isinstance(value, str | float | int | bool | None) else canonical(value)


def _with_differences(value: Any, values: Sequence[Any]) -> Label:
    """`local_sgd local_steps=5`: the name, and the fields in which values of this name differ."""
    if not isinstance(value, dict) or "label" in value:
        return _own(value)
    namesakes = [other for other in values if isinstance(other, dict) and _own(other) == _own(value)]
    differing = [
        k
        for k in value
        if k not in Choices.model_fields and any(other.get(k) != value[k] for other in namesakes)
    ]
    parts = [f"{k}={value[k] if not isinstance(value[k], dict) else canonical(value[k])}" for k in differing]
    return " ".join([str(_own(value)), *parts])
