"""`fedsim check`: find the named algorithm, give it numbers, and check all properties one after another."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedsim.algorithms.registry import ALGORITHM_HAS, algorithms, is_algorithm
from fedsim.common.errors import InputError, PluginError, Refused, suggest
from fedsim.common.plugins import module_of
from fedsim.common.process import one_thread
from fedsim.isolated.parts import confined, new_child
from fedsim.protocol.batch import FULL, KINDS, Batch
from fedsim.protocol.blame import Blame, raised
from fedsim.protocol.contract import Algorithm
from fedsim.testing.federations import Example
from fedsim.testing.properties import PROPERTIES, AlgorithmTests, Property

_STEPS = (1.0, 0.3, 0.1, 0.03, 0.01)
_TOLERANCE = 0.008
_SHORT, _LONG = 4, 500  # rounds


def examples(
    named: str, numbers: Mapping[str, Any], left_out: Mapping[str, str], isolated: bool = False
) -> dict[str, Example]:
    """{title: example} of what is named. InputError: there is no such algorithm, a number of it is missing,
    or `numbers` is of no use.

    Args:
        named: a scenario's name of an algorithm, module:Class, file.py or file.py:Class; a file is taken at
            the examples of its `AlgorithmTests`, or at an `Example` in it, and else at its algorithms.
        numbers: of fields, for classes without an example.
        left_out: besides the examples' own.
        isolated: run the methods in a confined process, as `runtime.plug_ins: isolated` does.
    """
    found: dict[str, Example] = {}
    shown = f" ({', '.join(f'{name}={value}' for name, value in numbers.items())})" if numbers else ""
    for title, thing in _things(named).items():
        if not (isinstance(thing, Example) or _is_tests(thing)):
            found[title + shown] = _example(thing, numbers)
        elif numbers:
            raise InputError("--set", dict(numbers), f"{title} says which numbers are taken; change it there")
        else:
            found[title] = thing if isinstance(thing, Example) else thing.example
    for title, each in found.items() if isolated else ():
        child = new_child()
        short, convergent = confined(each.short, child), confined(each.convergent, child)
        found[title] = replace(each, short=short, convergent=convergent)
    return {title: replace(each, left_out={**each.left_out, **left_out}) for title, each in found.items()}


def _things(named: str) -> dict[str, Any]:
    """{title: what is checked}, a class or an example."""
    place, _, attribute = named.partition(":") if not Path(named).is_file() else (named, "", "")
    if not attribute and not place.endswith(".py"):
        if place not in algorithms():
            hint = f"{suggest(place, algorithms())}; or module:Class, or file.py"
            raise InputError("ALGORITHM", named, hint)
        return {algorithms()[place].__qualname__: algorithms()[place]}
    module = _module(place, named)
    if attribute:
        thing = vars(module).get(attribute)
        if not (is_algorithm(thing) or _is_tests(thing)):
            raise InputError("ALGORITHM", named, f"must name a dataclass with {ALGORITHM_HAS}")
        return {attribute: thing}
    held = vars(module)
    classes = {name: kind for name, kind in held.items() if isinstance(kind, type)}
    own = {name: kind for name, kind in classes.items() if kind.__module__ == module.__name__}
    examples = {name: each for name, each in held.items() if isinstance(each, Example)}
    tests = {name: kind for name, kind in own.items() if _is_tests(kind)}
    if found := tests or examples or {name: kind for name, kind in own.items() if is_algorithm(kind)}:
        return found
    raise InputError("ALGORITHM", named, f"holds no dataclass with {ALGORITHM_HAS}")


def _is_tests(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, AlgorithmTests)


def _module(place: str, named: str) -> ModuleType:
    if place.endswith(".py"):
        sys.path.insert(0, str(Path(place).resolve().parent))  # tests import the algorithm beside them
        return module_of(place, "ALGORITHM")
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        reason = raised(error) if isinstance(error, Exception) else "it ends the process"
        raise InputError("ALGORITHM", named, f"cannot be imported: {reason}") from error


USUAL = ("num_rounds", "step_size", "clip_norm")
"""Fields that the check sets, each run's as it needs them, where they are not given."""


def _example(kind: type[Algorithm], given: Mapping[str, Any]) -> Example:
    """An example with the given numbers, those of `USUAL` that are not given, and fields' defaults. One of
    several step sizes must reach the optimum, in a run of about 500 rounds, so that the tolerance is wide.
    """
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError("--set", name, f"must be a field of {kind.__qualname__}: {', '.join(known)}")

    def built(rounds: int, step: float, batch: Batch) -> Algorithm:
        usual = dict(zip(USUAL, (rounds, step, 1.0), strict=True))
        own = {name: value for name, value in usual.items() if name in known}
        try:
            return kind(**{**own, **_batches(kind, batch), **given})
        except InputError as error:
            raise InputError(f"algorithm.{error.field}", error.value, error.hint) from error
        except Exception as error:
            Blame(kind).failed("its numbers", error)

    required = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]  # type: ignore[arg-type]
    set_here = {*given, *USUAL, *_batches(kind, FULL)}
    if absent := [name for name in required if name not in set_here]:
        options = " ".join(f"--set {name}=NUMBER" for name in absent)
        hint = f"needs {options}; or an Example in the file (fedsim.testing), which gives all numbers"
        raise InputError(f"algorithm.{absent[0]}", None, hint)
    built(_SHORT, 0.1, FULL)
    return Example(
        short=lambda batch: built(_SHORT, 0.1, batch),
        convergent=lambda step: built(_LONG, step, FULL),
        tolerance=_TOLERANCE,
        steps=_STEPS,
    )


def _batches(kind: type[Algorithm], batch: Batch) -> dict[str, Batch]:
    hints = get_type_hints(kind)
    some = {name for name, hint in hints.items() if get_origin(hint) and set(get_args(hint)) <= set(KINDS)}
    own = [each for each in fields(kind) if isinstance(each.default, KINDS) or each.name in some]  # type: ignore[arg-type]
    return {each.name: batch for each in own}


@dataclass(frozen=True)
class Checked:
    """The outcome of a property; the reason is empty where it holds."""

    name: str
    outcome: Literal["passed", "failed", "left out", "not tried"]
    reason: str = ""


def check(example: Example) -> Iterator[Checked]:
    """The properties in order, most only after a dry run; InputError if what is left out is no property."""
    named = {each.name for each in PROPERTIES} | {each.case for each in PROPERTIES}
    for name in example.left_out:
        if name not in named:
            hint = f"must be one of {', '.join(each.name for each in PROPERTIES)}"
            raise InputError("left out", name, hint)
    runs = True
    with one_thread():
        for each in PROPERTIES:
            unknown = Checked(each.name, "not tried", "there is no dry run")
            found = _checked(each, example) if runs else unknown
            runs &= not (each is PROPERTIES[0] and found.outcome == "failed")
            yield found


def _checked(each: Property, example: Example) -> Checked:
    if reason := each.left_out(example):
        return Checked(each.name, "left out", reason)
    try:
        each.holds(example)
    except (AssertionError, InputError, PluginError, Refused) as error:
        return Checked(each.name, "failed", str(error))
    except Exception as error:
        return Checked(each.name, "failed", raised(error))
    return Checked(each.name, "passed")
