"""Modules and problems of others that let records reach each other: refused, or harmless by the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import hostile_modules
from support.audit_settings import SMALL

from fedsim.attacks import exact
from fedsim.attacks.search import search
from fedsim.attacks.setting import Setting, prepare
from fedsim.common.errors import InputError, Refused
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve

MODULES = ("Shifted", "Capped", "Sorted", "OwnRule", "subclassed", "hooked", "records_as_channels")
PROBLEMS = ("Centred", "Raising", "Indexing", "Scoring", "Accepting")


def _assert_harmless(setting: Setting) -> None:
    chosen = search(setting, 0)
    found = exact.search(setting, 0, chosen, 3, 30)
    assert found.asked
    assert found.sensitivity <= 1 + exact.TOLERANCE
    assert found.cross <= exact.TOLERANCE


@pytest.mark.parametrize("name", MODULES)
def test_a_module(name: str) -> None:
    data = {"name": "synthetic", "rows": 90, "features": 5}
    model = {"name": "module", "path": f"support.hostile_modules:{name}"}
    problem = {"name": "neural_network", "model": model}
    algorithm: dict[str, Any] = {"name": "prox_sgd", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0}
    tree = SMALL | {"data": data, "problem": problem, "algorithm": algorithm}
    try:
        setting = prepare(resolve(parse(tree)))
    except (InputError, Refused):
        return
    _assert_harmless(setting)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem(name: str) -> None:
    data = {"name": "synthetic", "rows": 60, "features": 3, "link": "linear"}
    resolved = resolve(parse(SMALL | {"data": data, "problem": "linear_regression"}))
    problem = getattr(hostile_modules, name)(resolved.problem.num_features)
    try:
        setting = prepare(replace(resolved, problem=problem))
    except (InputError, Refused):
        return
    _assert_harmless(setting)
