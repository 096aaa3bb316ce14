"""An example of an algorithm from its fields alone: numbers that usually suit fields of their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_origin, get_type_hints

from fedsim.common.errors import InputError
from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Poisson, Subsample, WithReplacement
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm
from fedsim.testing.example import Example

_BATCHES = Full | Subsample | WithReplacement | Poisson | Fresh
_STEPS = (1.0, 0.3, 0.1, 0.03, 0.01)
_TOLERANCE = 0.008
_SHORT = {"rounds": 4, "epochs": 2, "restarts": 1}
_LONG = {"rounds": 500, "epochs": 60, "restarts": 3}
_INNER = 2


def guessed(kind: type[Algorithm], given: Mapping[str, Any]) -> Example:
    """An example with the numbers that are given, its defaults, and guesses for the others.

    The optimum is to be reached with one of several step sizes, by a run of about 500 rounds, so that the
    tolerance is wide.

    Raises:
        InputError: a number is of no field, or one cannot be guessed.
    """
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError("--set", name, f"must be a field of {kind.__qualname__}: {', '.join(known)}")

    def built(counts: Mapping[str, int], step: float, batch: Batch) -> Algorithm:
        values = {**_values(kind, counts, step, batch), **given}
        try:
            return kind(**values)
        except InputError as error:
            raise InputError(f"algorithm.{error.field}", error.value, error.expected) from error
        except Exception as error:
            Blame(kind).failed("its numbers", error)

    built(_SHORT, 0.1, FULL)
    return Example(
        short=lambda batch: built(_SHORT, 0.1, batch),
        convergent=lambda step: built(_LONG, step, FULL),
        tolerance=_TOLERANCE,
        steps=_STEPS,
    )


def _values(kind: type[Algorithm], counts: Mapping[str, int], step: float, batch: Batch) -> dict[str, Any]:
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if isinstance(each.default, _BATCHES):
            values[each.name] = batch
        elif each.default is MISSING and each.default_factory is MISSING:
            values[each.name] = _number(each, hints[each.name], counts, step, batch)
    return values


def _number(each: Field[Any], hint: Any, counts: Mapping[str, int], step: float, batch: Batch) -> Any:
    name = each.name.lower()
    if hint is int:
        return next((value for word, value in counts.items() if word in name), _INNER)
    if hint is float and any(word in name for word in ("step", "rate", "lr", "eta")):
        return step
    if hint is float and "clip" in name:
        return 2.0 if "difference" in name else 1.0
    if get_origin(hint) is not None and set(get_args(hint)) <= set(get_args(_BATCHES)):
        return batch
    raise InputError(f"algorithm.{each.name}", None, f"cannot be guessed: give --set {each.name}=NUMBER")
