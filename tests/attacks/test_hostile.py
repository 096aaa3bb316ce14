"""Modules and problems of others that let records reach each other: refused, or harmless by the search."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support import hostile_modules
from support.audit_settings import SMALL

from fedsim.common.errors import InputError, Refused
from fedsim.isolated.confine import unavailable
from fedsim.problems.network import NeuralNetwork
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.testing.attacks import sensitivity
from fedsim.testing.attacks.search import search
from fedsim.testing.attacks.setting import prepare

MODULES = ("Shifted", "Capped", "Sorted", "own_rule", "subclassed", "hooked", "records_as_channels")
PROBLEMS = ("Centred", "Raising", "Indexing", "Scoring", "Accepting")
_QUICK = ("Shifted", "Centred")  # a confined process takes seconds to start


def _in_both_places(names: Sequence[str]) -> list[Any]:
    confined = pytest.mark.skipif(unavailable() is not None, reason="no process can be confined here")
    return [(name, "in_process") for name in names] + [
        pytest.param(name, "isolated", marks=[confined, *([] if name in _QUICK else [pytest.mark.slow])])
        for name in names
    ]


def _assert_refused_or_harmless(resolved: Resolved) -> None:
    """The part is refused before records are read, or moves answers by the sensitivity at most."""
    try:
        setting = prepare(resolved)
    except (InputError, Refused):
        return
    found = sensitivity.search(setting, 0, search(setting, 0), 3, 30)
    assert found.asked
    assert found.sensitivity <= 1 + sensitivity.TOLERANCE
    assert found.cross <= sensitivity.TOLERANCE


def _resolved(place: str, **changes: Any) -> Resolved:
    return resolve(parse(SMALL | changes | {"runtime": {"name": "inprocess", "plug_ins": place}}))


@pytest.mark.parametrize(("name", "place"), _in_both_places(MODULES))
def test_a_module(name, place):
    data = {"name": "synthetic", "rows": 90, "features": 5}
    algorithm = {"name": "prox_sgd", "num_rounds": 3, "step_size": 0.5, "clip_norm": 1.0}
    problem = {"name": "neural_network", "model": "mlp"}
    resolved = _resolved(place, data=data, problem=problem, algorithm=algorithm)
    shape = resolved.problem.num_features, resolved.problem.num_outputs
    model = hostile_modules.Built(getattr(hostile_modules, name))
    hostile = NeuralNetwork(*shape, model=model)
    _assert_refused_or_harmless(replace(resolved, problem=hostile))


@pytest.mark.parametrize(("name", "place"), _in_both_places(PROBLEMS))
def test_a_problem(name, place):
    data = {"name": "synthetic", "rows": 60, "features": 3, "link": "linear"}
    resolved = _resolved(place, data=data, problem="linear_regression")
    problem = getattr(hostile_modules, name)(resolved.problem.num_features)
    _assert_refused_or_harmless(replace(resolved, problem=problem))
