"""Settings that are one of several kinds: read, written and described by name."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from fedsim.common.section import kinds
from fedsim.problems.composite import Box, Constraint, L2Ball, WholeSpace
from fedsim.problems.network_models import Imported, Lenet, Mlp, Model
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.scenario.load import parse
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import AllSilos, AvailableSilos, Participation, UniformSilos
from fedsim.theory.participants import RandomSize

GOOD: dict[str, Any] = {
    "name": "good",
    "data": {"name": "synthetic"},
    "partition": {"name": "iid", "num_partitions": 4},
    "problem": {"name": "logistic_regression"},
    "algorithm": {"name": "prox_sgd", "num_rounds": 5, "step_size": 0.1, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
}
CHOICES = [
    ("algorithm", "batch", "full", FULL),
    ("algorithm", "batch", {"sampler": "subsample", "fraction": 0.5}, Subsample(0.5)),
    ("algorithm", "batch", {"sampler": "with_replacement", "fraction": 1}, WithReplacement(1.0)),
    ("algorithm", "batch", {"sampler": "poisson", "fraction": 0.5}, Poisson(0.5)),
    ("algorithm", "batch", {"sampler": "fresh", "fraction": 0.5}, Fresh(0.5)),
    ("problem", "constraint", "none", WholeSpace()),
    ("problem", "constraint", {"name": "l2_ball", "radius": 2}, L2Ball(2.0)),
    ("problem", "constraint", {"name": "box", "lower": -1, "upper": 2}, Box(-1.0, 2.0)),
    ("problem", "model", "mlp", Mlp((64,))),
    ("problem", "model", {"name": "mlp", "hidden": [3, 2]}, Mlp((3, 2))),
    ("problem", "model", {"name": "lenet", "image": [1, 16, 16]}, Lenet((1, 16, 16))),
    ("problem", "model", {"name": "module", "path": "torch.nn:Linear"}, Imported("torch.nn:Linear")),
    ("", "participation", "all", AllSilos()),
    ("", "participation", {"name": "uniform", "num_silos": 3}, UniformSilos(3)),
    ("", "participation", {"name": "random_size", "min_silos": 1, "max_silos": 2}, RandomSize(1, 2)),
    ("", "participation", {"name": "availability", "probability": {"a": 1}}, AvailableSilos({"a": 1.0})),
]


def _tree(section: str, field: str, value: object) -> dict[str, Any]:
    return GOOD | ({section: GOOD[section] | {field: value}} if section else {field: value})


def _value(scenario: Scenario, section: str, field: str) -> object:
    return getattr(getattr(scenario, section) if section else scenario, field)


@pytest.mark.parametrize(("section", "field", "given", "meant"), CHOICES, ids=lambda each: str(each)[:40])
def test_a_kind_is_read_written_and_read_again(section: str, field: str, given: Any, meant: object) -> None:
    tree = _tree(section, field, given)
    scenario = parse(tree)
    assert _value(scenario, section, field) == meant
    for mode in ("python", "json"):
        dumped = scenario.model_dump(mode=mode)
        assert _value(parse(dumped), section, field) == meant
    assert _value(parse(_tree(section, field, meant)), section, field) == meant  # from Python, as it is
    validator = Draft202012Validator(Scenario.model_json_schema())
    assert validator.is_valid(tree)
    wrong = {**(given if isinstance(given, dict) else {}), "nonsense": 1}
    assert not validator.is_valid(_tree(section, field, wrong))


@pytest.mark.parametrize(("choice", "key"), [(Batch, "sampler"), (Constraint, "name"), (Model, "name")])
def test_the_schema_names_every_kind_and_describes_every_field(choice: Any, key: str) -> None:
    described = TypeAdapter(choice).json_schema()["$defs"]
    for name, kind in kinds(choice).items():
        schema = described[kind.__name__]
        assert schema["properties"][key] == {"const": name, "type": "string"}
        assert key in schema["required"]
        assert schema["description"]
        assert all("description" in field for k, field in schema["properties"].items() if k != key)


def test_a_default_is_described_as_it_would_be_written() -> None:
    schema = Scenario.model_json_schema()
    assert schema["properties"]["participation"]["default"] == {"name": "all"}
    assert schema["$defs"]["prox_sgd"]["properties"]["batch"]["default"] == {"sampler": "full"}


def test_participation_is_a_choice() -> None:
    assert list(kinds(Participation)) == ["all", "uniform", "random_size", "availability", "trace"]
