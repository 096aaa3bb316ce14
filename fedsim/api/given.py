"""The arguments that name a scenario, and those that change it: overrides and objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedsim.algorithms.registry import is_algorithm
from fedsim.common.beside import module_file
from fedsim.common.errors import InputError
from fedsim.common.plugins import forget_files
from fedsim.common.section import Section
from fedsim.data.by_label import NaturalIdPartition
from fedsim.data.dataset import Dataset
from fedsim.data.registry import plain
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.registry import problems
from fedsim.protocol.contract import Algorithm
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.catalogue import find
from fedsim.scenario.load import anchored, check_unchanged, completed, parse, read
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved, resolve

ScenarioLike = str | os.PathLike[str] | Mapping[str, Any] | Scenario
"""A shipped scenario's name, a YAML file, nested mappings as such a file holds them, or a `Scenario`."""


def changes_of(overrides: Mapping[str, Any] | None, short: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a caller changes, {field: value}. InputError if `overrides` is no mapping."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise InputError("overrides", overrides, 'must be a mapping such as {"algorithm.step_size": 0.5}')
    return {**(overrides or {}), **short}


def one_run(given: ScenarioLike, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of a single run; as `scenario_of`. InputError if it has a `sweep` section."""
    scenario = scenario_of(given, changes)
    scenario.check_single()
    return scenario


def scenario_of(given: ScenarioLike, changes: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario with overrides applied, {field: value}, the field dotted or, where it is the last part of
    one only, that part. InputError: it is no scenario, a field is wrong, or an override names no field.
    """
    if isinstance(given, Scenario) and not changes:
        return given
    return parse(tree_of(given, changes))


def tree_of(given: ScenarioLike, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`scenario_of` before validation: nested mappings, which a sweep completes."""
    tree, folder = _tree(given)
    return anchored(completed(_leaves(tree, _by_name), _leaves(changes or {}, _by_name)), folder)


def _leaves(value: Any, written: Callable[[Any], Any]) -> Any:
    """Nested values, each that is no mapping and no list as it is `written`."""
    if isinstance(value, Mapping):
        return {key: _leaves(each, written) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_leaves(each, written) for each in value]
    return written(value)


def _by_name(value: Any) -> Any:
    """A problem's class as the scenario names it: a class of a file by that file."""
    if isinstance(value, GeneralisedLinear):
        hint = "give its class: the numbers of features and outputs are the data's"
        raise InputError("problem", type(value).__name__, hint)
    return _problem_name(value) if isinstance(value, type) and issubclass(value, GeneralisedLinear) else value


def _problem_name(kind: type[GeneralisedLinear]) -> str:
    """A problem's name in a scenario: a listed one, else "FILE:CLASS". The file as it is on disk is what
    runs, even where the class in memory is of an earlier version. InputError if no file has it by its name.
    """
    for name, known in problems().items():
        if known is kind:
            return name
    file = module_file(kind.__module__)
    # a run reads the file: that must not start the run, and has no classes of functions or of other classes
    if file is None or kind.__module__ == "__main__" or "." in kind.__qualname__:
        hint = f'write it to a file (in a notebook: %%writefile my.py), and give "my.py:{kind.__name__}"'
        raise InputError("problem", kind.__name__, hint)
    return f"{file}:{kind.__name__}"


def _tree(given: ScenarioLike) -> tuple[dict[str, Any], Path]:
    """Nested mappings, and the folder that file names in them are relative to."""
    forget_files()
    if isinstance(given, Scenario):
        return given.model_dump(mode="json", by_alias=True, exclude_none=True), Path.cwd()
    if isinstance(given, str | os.PathLike):
        path = find(given)
        return read(path), path.resolve().parent
    if isinstance(given, Mapping):
        return dict(given), Path.cwd()
    hint = "must be the name of a shipped scenario, a path, a mapping or a fedsim.Scenario"
    raise InputError("scenario", given, hint)


def resolved_of(
    scenario: Scenario,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    named: Collection[str] = (),
) -> Resolved:
    """The objects of a run. `algorithm` and `data` take the place of the scenario's, and data that name each
    record's silo that of its partition, unless one is among the fields `named` that the caller has set.
    InputError if a field is wrong, or an object is not what it should be; Refused: the plan is not accepted.
    """
    if data is None:
        check_unchanged(scenario)
    return resolve(scenario.model_copy(update=objects(algorithm, data, named)))


def with_objects(
    tree: Mapping[str, Any], algorithm: Algorithm | None, data: Dataset | None, named: Collection[str]
) -> dict[str, Any]:
    """A scenario as `tree_of` makes it, with plain values for objects, those that it varies too; arguments
    and errors as of `resolved_of`. To be read inside `fedsim.common.objects.standing`.
    """
    return dict(_leaves({**tree, **objects(algorithm, data, named)}, _plain))


def _plain(value: Any) -> Any:
    if isinstance(value, GivenAlgorithm) or is_algorithm(type(value)):
        return (value if isinstance(value, GivenAlgorithm) else GivenAlgorithm.of(value)).plain()
    if isinstance(value, Dataset):
        return plain(value)
    return value.model_dump(mode="json") if isinstance(value, Section) else value


def objects(algorithm: Algorithm | None, data: Dataset | None, named: Collection[str]) -> dict[str, Any]:
    """The sections that objects take the place of."""
    objects: dict[str, Any] = {} if algorithm is None else {"algorithm": GivenAlgorithm.of(algorithm)}
    if data is not None:
        if not isinstance(data, Dataset):
            hint = "must be fedsim.Frame(table, target, silo) or fedsim.Arrays(features, target, silo)"
            raise InputError("data", type(data).__name__, hint)
        objects["data"] = data
        if data.names_silos and not any(field.partition(".")[0] == "partition" for field in named):
            objects["partition"] = NaturalIdPartition()
    return objects
