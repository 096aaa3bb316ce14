"""`fedsim check`: find the named algorithm, give it numbers, and check all properties one after another."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedsim.algorithms.registry import ALGORITHM_HAS, algorithms, is_algorithm
from fedsim.common.errors import InputError, PluginError, Refused, suggest
from fedsim.common.process import one_thread
from fedsim.isolated.parts import confined, new_child
from fedsim.protocol.batch import FULL, Batch, Fresh, Full, Poisson, Subsample, WithReplacement
from fedsim.protocol.blame import Blame, raised
from fedsim.protocol.contract import Algorithm
from fedsim.testing.federations import Example
from fedsim.testing.properties import PROPERTIES, AlgorithmTests, Property

_BATCHES = Full | Subsample | WithReplacement | Poisson | Fresh
_STEPS = (1.0, 0.3, 0.1, 0.03, 0.01)
_TOLERANCE = 0.008
_SHORT, _LONG = 4, 500  # rounds


def examples(
    named: str, numbers: Mapping[str, Any], left_out: Mapping[str, str], isolated: bool = False
) -> dict[str, Example]:
    """{title: example} of what is named.

    Args:
        named: a scenario's name of an algorithm, module:Class, file.py or file.py:Class; a file that holds
            `AlgorithmTests` is taken at their examples.
        numbers: of fields, for classes without an example.
        left_out: besides the examples' own.
        isolated: run the methods in a confined process, as `runtime.plug_ins: isolated` does.

    Raises:
        InputError: there is no such algorithm, or a number of it is missing.
    """
    found = {
        kind.__qualname__: kind.example if issubclass(kind, AlgorithmTests) else _example(kind, numbers)
        for kind in _classes(named)
    }
    if isolated:
        found = {title: _isolated(example) for title, example in found.items()}
    return {
        title: replace(example, left_out={**example.left_out, **left_out}) for title, example in found.items()
    }


def _isolated(example: Example) -> Example:
    child = new_child()
    return replace(
        example, short=confined(example.short, child), convergent=confined(example.convergent, child)
    )


def _classes(named: str) -> list[Any]:
    place, _, attribute = named.partition(":") if not Path(named).is_file() else (named, "", "")
    if not attribute and not place.endswith(".py"):
        if place not in algorithms():
            hint = f"{suggest(place, algorithms())}; or module:Class, or file.py"
            raise InputError("ALGORITHM", named, hint)
        return [algorithms()[place]]
    module = _module(place, named)
    if attribute:
        return [_algorithm(getattr(module, attribute, None), named)]
    own = [kind for kind in vars(module).values() if getattr(kind, "__module__", None) == module.__name__]
    tests = [kind for kind in own if isinstance(kind, type) and issubclass(kind, AlgorithmTests)]
    if found := tests or [kind for kind in own if is_algorithm(kind)]:
        return found
    raise InputError("ALGORITHM", named, f"holds no dataclass with {ALGORITHM_HAS}")


def _algorithm(thing: object, named: str) -> object:
    if is_algorithm(thing) or (isinstance(thing, type) and issubclass(thing, AlgorithmTests)):
        return thing
    raise InputError("ALGORITHM", named, f"must name a dataclass with {ALGORITHM_HAS}")


def _module(place: str, named: str) -> ModuleType:
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        reason = raised(error) if isinstance(error, Exception) else "it ends the process"
        raise InputError("ALGORITHM", named, f"cannot be imported: {reason}") from error


def _from_file(path: Path) -> ModuleType:
    """A file as a module of its own name, beside its neighbours."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _example(kind: type[Algorithm], given: Mapping[str, Any]) -> Example:
    """An example with the numbers that are given, the fields' defaults, and usual values of `num_rounds`,
    `step_size` and `clip_norm`. One of several step sizes must reach the optimum, in a run of about
    500 rounds, so that the tolerance is wide.
    """
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError("--set", name, f"must be a field of {kind.__qualname__}: {', '.join(known)}")

    def built(rounds: int, step: float, batch: Batch) -> Algorithm:
        usual = {"num_rounds": rounds, "step_size": step, "clip_norm": 1.0}
        values = _numbers(kind, given, usual, batch)
        try:
            return kind(**values)
        except InputError as error:
            raise InputError(f"algorithm.{error.field}", error.value, error.hint) from error
        except Exception as error:
            Blame(kind).failed("its numbers", error)

    built(_SHORT, 0.1, FULL)
    return Example(
        short=lambda batch: built(_SHORT, 0.1, batch),
        convergent=lambda step: built(_LONG, step, FULL),
        tolerance=_TOLERANCE,
        steps=_STEPS,
    )


def _numbers(
    kind: type[Algorithm], given: Mapping[str, Any], usual: Mapping[str, Any], batch: Batch
) -> dict[str, Any]:
    """Values of the fields that are given, need one, or take a batch. InputError if a field needs a value,
    and has neither a given nor a usual one.
    """
    hints, values = get_type_hints(kind), dict(given)
    for each in fields(kind):  # type: ignore[arg-type]
        required = each.default is MISSING and each.default_factory is MISSING
        if each.name in given:
            continue
        if isinstance(each.default, _BATCHES) or (required and _is_batch(hints[each.name])):
            values[each.name] = batch
        elif required and each.name not in usual:
            hint = f"needs a number: give --set {each.name}=NUMBER, or an Example in the class's file"
            raise InputError(f"algorithm.{each.name}", None, hint)
        elif required:
            values[each.name] = usual[each.name]
    return values


def _is_batch(hint: Any) -> bool:
    return get_origin(hint) is not None and set(get_args(hint)) <= set(get_args(_BATCHES))


@dataclass(frozen=True)
class Checked:
    """The outcome of a property; the reason is empty where it holds."""

    name: str
    outcome: Literal["passed", "failed", "left out", "not tried"]
    reason: str = ""


def check(example: Example) -> Iterator[Checked]:
    """The properties in their order; without a dry run the others are not tried. InputError if the example
    leaves out what is no property.
    """
    named = {each.name for each in PROPERTIES} | {each.case for each in PROPERTIES}
    for name in example.left_out:
        if name not in named:
            raise InputError(
                "left out", name, f"must be one of {', '.join(each.name for each in PROPERTIES)}"
            )
    runs = True
    with one_thread():
        for each in PROPERTIES:
            found = (
                _checked(each, example) if runs else Checked(each.name, "not tried", "there is no dry run")
            )
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
