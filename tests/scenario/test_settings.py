"""Settings that are one of several kinds: read, written and described by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from support.refusals import ANY, lacking, refused
from support.scenarios import once

from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.common.errors import InputError
from fedsim.common.registry import kinds
from fedsim.common.section import fields
from fedsim.problems.network_models import Imported, Lenet, Mlp, Model
from fedsim.problems.regularisers import Box, Constraint, L2Ball, WholeSpace
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.contract import Asker, Memory, Public, PublicProblem, Query, Round, ServerHalf
from fedsim.scenario.algorithm import GivenAlgorithm
from fedsim.scenario.load import apply, full_name, parse, parse_sweep
from fedsim.scenario.model import Scenario
from fedsim.scenario.participation import AllSilos, AvailableSilos, Participation, UniformSilos
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.theory.participants import RandomSize

GOOD = once(
    problem={"name": "logistic_regression"},
    algorithm={"name": "prox_sgd", "num_rounds": 5, "step_size": 0.1, "clip_norm": 1.0},
)
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


# An error's field is one of the scenario's own, wherever it stands, and the value is what was given.

BAD = {
    "{problem: {name: neural_network, model: {name: mlp, hidden: [3, 0]}}}": (
        "problem.model.hidden.1: 0: input should be greater than or equal to 1"
    ),
    "{problem.constraint: {name: l2_ball, radus: 1}}": "problem.constraint.radus: 1: unknown key | 'radius'",
    "{algorithm.batch: {sampler: full, fraction: 0.5}}": "algorithm.batch.fraction: 0.5: unknown key",
    "{problem.constraint: {name: box, lower: 2, upper: 1}}": "problem.constraint.lower: 2.0: at most upper",
    "{participation: {name: random_size, min_silos: 3, max_silos: 2}}": (
        "participation.min_silos: 3: at most max_silos, 2"
    ),
    "{participation: uniform}": "participation.num_silos: None: is required",
    "{problem: logistic}": "problem.name: 'logistic': input should be",
    "{algorithm.clip_norm: null}": "algorithm.clip_norm: None: is required",
    "{privacy.epsilon: {silo-0: -1}}": "privacy.epsilon.silo-0: -1: input should be greater than 0",
    "{problem.constraint: {name: l2_ball, radius: true}}": (
        "problem.constraint.radius: True: must be a number, not true or false"
    ),
    "{report: []}": "report: []: must be a mapping with keys such as evaluate_every",
    "{problem.constraint: {name: box, lower: -.inf, upper: 1}}": (
        "problem.constraint.lower: -inf: input should be a finite number"
    ),
}
"""Changes of a scenario, and what the refusal says of them; its field is one that the file has."""


@pytest.mark.parametrize("changes", BAD)
def test_the_field_is_the_files_own(changes: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(apply(GOOD, yaml.safe_load(changes)))
    assert lacking(caught.value, BAD[changes]) == []
    assert str(caught.value).startswith(f"scenario.{BAD[changes].partition(' | ')[0]}")


def test_a_sweep_is_read_on_its_own_and_named_in_full() -> None:
    with refused("scenario.sweep.tune.gird", ANY, "{}: unknown key; did you mean 'grid'"):
        parse_sweep({"tune": {"gird": {}}})


# Overrides by full and by short names.

TREE: dict[str, Any] = {
    "data": {"name": "synthetic", "rows": 100},
    "partition": "iid",
    "algorithm": {"name": "local_sgd", "batch": {"sampler": "poisson", "fraction": 0.5}},
}


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("epsilon", "privacy.epsilon"),
        ("step_size", "algorithm.step_size"),
        ("trials", "trials"),
        ("seed", "seed"),  # a field of the scenario, and only then one of the data
        ("local_steps", "algorithm.local_steps"),
        ("fraction", "algorithm.batch.fraction"),  # given; others might be
        ("batch.fraction", "algorithm.batch.fraction"),
        ("rows", "data.rows"),
        ("nonprivate_baseline", "report.nonprivate_baseline"),
        ("algorithm.stepsize", "algorithm.stepsize"),  # in full: validation says what is wrong with it
    ],
)
def test_a_short_name_is_the_only_field_that_ends_so(short: str, full: str) -> None:
    assert full_name(TREE, short) == full


@pytest.mark.parametrize(
    ("short", "told"),
    [
        ("beta", ["problem.smoothing.beta", "assumptions.beta"]),
        ("epsilom", ["no such field", "'epsilon'"]),
        ("privcy.epsilon", ["'privacy.epsilon'"]),
        ("period", ["no such field"]),  # another algorithm's
        ("privcy", ["'privacy'"]),
    ],
)
def test_a_name_that_says_no_one_field_is_refused(short: str, told: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        apply(TREE, {short: 3})
    for text in [short, "3", *told]:
        assert text in str(caught.value)


def test_changes_are_made_in_order_to_a_copy() -> None:
    changed = apply(TREE, {"partition.num_partitions": 3, "batch": "full", "epsilon": 2.0})
    assert changed["partition"] == {"name": "iid", "num_partitions": 3}
    assert changed["algorithm"] == {"name": "local_sgd", "batch": "full"}
    assert changed["privacy"] == {"epsilon": 2.0}
    assert TREE["partition"] == "iid"
    with refused("scenario.local_steps", 2, "no such field"):
        apply(TREE, {"algorithm": {"name": "prox_spider"}, "local_steps": 2})


def test_the_fields_of_what_a_person_names_are_fields_too() -> None:
    columns = {"age": {"kind": "number"}, "sick": {"kind": "category"}}
    found = fields(
        {"data": {"name": "csv", "schema": columns}, "privacy": {"epsilon": {"north": 1.0}}}, Scenario
    )
    assert {"data.schema.age.upper", "data.schema.sick.categories", "privacy.epsilon.north"} <= set(found)
    assert "data.schema.sick.upper" not in found


# An algorithm given as an object: it runs instead of the section's, and errors name it.


@dataclass(frozen=True)
class OneStep:
    """A gradient step."""

    linear: ClassVar[bool] = True
    step_size: float

    def server(
        self, w: torch.Tensor, problem: PublicProblem, public: Public, rng: np.random.Generator
    ) -> ServerHalf:
        mean = yield Round({"w": w}, answer=w)
        return w - self.step_size * mean["g"]

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, torch.Tensor], ask: Asker, memory: Memory
    ) -> Mapping[str, torch.Tensor]:
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0))}


def tree(algorithm: dict[str, Any], **privacy: Any) -> dict[str, Any]:
    return once(algorithm=algorithm, privacy={"delta": 1e-5, **privacy})


SECTION = {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 0.1, "clip_norm": 2.0}
OTHER = {"name": "local_sgd", "num_rounds": 9, "local_steps": 2, "step_size": 1.0, "clip_norm": 7.0}
STATED = {"epsilon": "unlimited", "calibration": "theorem", "claimed_epsilon": 0.5}


def given(algorithm: Any, section: dict[str, Any], **privacy: Any) -> Resolved:
    scenario = parse(tree(section, **privacy))
    return resolve(scenario.model_copy(update={"algorithm": GivenAlgorithm.of(algorithm)}))


def test_it_runs_instead_of_the_sections() -> None:
    resolved = given(OneStep(0.5), SECTION)
    assert resolved.algorithm == OneStep(0.5)
    assert len(resolved.trace.plan.rounds) == 1


def test_the_sections_numbers_count_for_nothing() -> None:
    section = {"name": "prox_sgd", "parameters": "theorem"}  # without the constants that it would need
    resolved = given(NoisyMinibatchSGD(3, 0.1, 2.0), section)
    assert resolved.derived is None
    assert resolved.symbols.L == 2.0  # its clip


def test_the_theorem_of_a_shipped_one_states_its_noise() -> None:
    by_name = resolve(parse(tree(SECTION, **STATED)))
    assert given(NoisyMinibatchSGD(3, 0.1, 2.0), OTHER, **STATED).prescribed == by_name.prescribed


def test_a_shipped_one_gets_the_theorems_ratio_of_its_two_noises() -> None:
    numbers = {"num_rounds": 6, "period": 3, "step_size": 0.1, "clip_norm": 2.0}
    by_name = resolve(parse(tree({"name": "prox_spider", **numbers}, **STATED)))
    resolved = given(ProxSPIDER(**numbers), OTHER, **STATED)
    assert resolved.algorithm == by_name.algorithm
    assert by_name.algorithm.difference_noise_ratio != 1
    assert resolved.trace == by_name.trace


BAD_GIVEN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a class": (OneStep, {}, r"algorithm: .*is a class"),
    "anything": (object(), {}, r"algorithm: .*object.*with methods server and silo"),
    "no theorem": (OneStep(1.0), STATED, r"privacy\.calibration: 'theorem': no theorem speaks of .*OneStep"),
    "another of a shipped one's name": (
        type("prox_sgd", (OneStep,), {})(1.0),
        STATED,
        r"privacy\.calibration: 'theorem': no theorem speaks of .*\.prox_sgd, only",
    ),
    "no clip": (
        OneStep(1.0),
        {"epsilon": "unlimited", "calibration": "sigma", "sigma": 1.0},
        r"privacy\.sigma: 1\.0: OneStep has no clip_norm; use noise_multiplier",
    ),
}


@pytest.mark.parametrize("case", BAD_GIVEN)
def test_what_is_wrong_is_named(case: str) -> None:
    algorithm, privacy, expected = BAD_GIVEN[case]
    with pytest.raises(InputError, match=expected):
        given(algorithm, SECTION, **privacy)
