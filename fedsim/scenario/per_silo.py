"""Fields with a value for each silo: one for all, a list in order of names, or a map by name."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from fedsim.common.errors import InputError
from fedsim.scenario.model import PrivacySection, ProblemSection


def per_silo(field: str, value: Any, names: Sequence[str]) -> tuple[float, ...]:
    """The values in order of `names`.

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


def _check_keys(field: str, value: dict[str, float], names: Sequence[str]) -> None:
    known = set(names)
    for name in value:
        if name not in known:
            raise InputError(f"{field}.{name}", value[name], f"no such silo; silos: {_shortened(names)}")
    missing = [name for name in names if name not in value]
    if missing:
        raise InputError(field, value, f"no value for {_shortened(missing)}")


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def epsilons(privacy: PrivacySection, names: Sequence[str]) -> tuple[float, ...]:
    """Budgets; infinity where there is none."""
    unlimited = privacy.mechanism == "none" or privacy.epsilon == "unlimited"
    return per_silo("scenario.privacy.epsilon", inf if unlimited else privacy.epsilon, names)


def deltas(privacy: PrivacySection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    """delta_i.

    Raises:
        InputError: 1/n^2 of a silo with one record.
    """
    if privacy.delta != "1/n^2":
        return per_silo("scenario.privacy.delta", privacy.delta, names)
    for name, n in zip(names, sizes, strict=True):
        if n < 2 and privacy.mechanism != "none":
            expected = f"below 1: silo {name} has {n} training record, so 1/n^2 is {1 / n**2:g}"
            raise InputError("scenario.privacy.delta", privacy.delta, expected)
    return tuple(1 / n**2 for n in sizes)


def weights(section: ProblemSection, names: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
    """p_i, summing to 1."""
    match section.silo_weights:
        case "equal":
            raw: Sequence[float] = [1.0] * len(names)
        case "size":
            raw = sizes
        case given:
            raw = per_silo("scenario.problem.silo_weights", given, names)
    total = sum(raw)
    return tuple(share / total for share in raw)
