"""An error's field is one of the scenario's own, wherever it stands, and the value is what was given."""

from __future__ import annotations

from typing import Any

import pytest

from fedsim.common.errors import InputError
from fedsim.scenario.load import apply, parse, parse_sweep

GOOD: dict[str, Any] = {
    "name": "good",
    "data": {"name": "synthetic"},
    "partition": {"name": "iid", "num_partitions": 4},
    "problem": {"name": "logistic_regression"},
    "algorithm": {"name": "prox_sgd", "num_rounds": 5, "step_size": 0.1, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
}
MODEL = {"name": "neural_network", "model": {"name": "mlp", "hidden": [3, 0]}}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a number in a list of a kind": (
        {"problem": MODEL},
        "scenario.problem.model.hidden.1: 0: input should be greater than or equal to 1",
    ),
    "an unknown key of a kind": (
        {"problem.constraint": {"name": "l2_ball", "radus": 1}},
        "scenario.problem.constraint.radus: 1: unknown key; did you mean 'radius'?",
    ),
    "a kind that has no fields": (
        {"algorithm.batch": {"sampler": "full", "fraction": 0.5}},
        "scenario.algorithm.batch.fraction: 0.5: unknown key; known: 'sampler'",
    ),
    "numbers at odds": (
        {"problem.constraint": {"name": "box", "lower": 2, "upper": 1}},
        "scenario.problem.constraint.lower: 2.0: at most upper, 1.0",
    ),
    "numbers at odds, by the names of the file": (
        {"participation": {"name": "random_size", "min_silos": 3, "max_silos": 2}},
        "scenario.participation.min_silos: 3: at most max_silos, 2",
    ),
    "a short form that lacks a number": (
        {"participation": "uniform"},
        "scenario.participation.num_silos: None: is required",
    ),
    "a text for a section": ({"problem": "logistic"}, "scenario.problem.name: 'logistic': input should be"),
    "a number that is null": (
        {"algorithm.clip_norm": None},
        "scenario.algorithm.clip_norm: None: is required",
    ),
    "a silo's number": (
        {"privacy.epsilon": {"silo-0": -1}},
        "scenario.privacy.epsilon.silo-0: -1: input should be greater than 0",
    ),
    "a flag for a kind's number": (
        {"problem.constraint": {"name": "l2_ball", "radius": True}},
        "scenario.problem.constraint.radius: True: must be a number, not true or false",
    ),
    "no mapping": ({"report": []}, "scenario.report: []: must be a mapping with keys such as evaluate_every"),
    "an infinite number": (
        {"problem.constraint": {"name": "box", "lower": float("-inf"), "upper": 1}},
        "scenario.problem.constraint.lower: -inf: input should be a finite number",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_the_field_is_the_files_own(case: str) -> None:
    changes, told = BAD[case]
    with pytest.raises(InputError) as caught:
        parse(apply(GOOD, changes))
    assert str(caught.value).startswith(told)


def test_a_sweep_is_read_on_its_own_and_named_in_full() -> None:
    with pytest.raises(InputError, match=r"scenario.sweep.tune.gird: \{\}: unknown key; did you mean 'grid'"):
        parse_sweep({"tune": {"gird": {}}})
