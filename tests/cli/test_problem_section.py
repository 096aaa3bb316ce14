"""The `problem` section: what it makes, and how it refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refusals import lacking
from support.scenarios import BASE, changed, invoke, refusal, write

from fedsim.common.errors import InputError
from fedsim.problems.glm import GeneralisedLinear, HingeLoss, SoftmaxRegression
from fedsim.problems.regularisers import GroupLasso, L2Ball, Ridge
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import trial_of

GOOD = changed(BASE, {"algorithm.name": "prox_sgd", "problem": {"name": "logistic_regression"}})
GROUPS = "regulariser={group_lasso: {weight: 0.1, groups: %s}}"


def _made(problem: dict[str, Any], data: dict[str, Any] | None = None) -> GeneralisedLinear:
    tree = GOOD | {"problem": problem, "data": GOOD["data"] | (data or {})}
    return resolve(parse(tree)).problem


def test_wrappers_are_part_of_the_problem() -> None:
    problem = {
        "name": "hinge_loss",
        "smoothing": {"beta": 2.5},
        "ridge": {"weight": 0.3, "centre": [1, 2, 3, 4]},
        "regulariser": {"l1": 0.1, "group_lasso": {"weight": 0.2, "groups": [[0, 2], [1]]}},
        "constraint": {"name": "l2_ball", "radius": 2},
    }
    made = _made(problem)
    assert isinstance(made, HingeLoss)
    assert made.smoothing == 2.5
    assert made.composite.ridge == Ridge(0.3, (1.0, 2.0, 3.0, 4.0))
    assert made.composite.group_lasso == GroupLasso(0.2, ((0, 2), (1,)))
    assert made.composite.constraint == L2Ball(2.0)
    assert made == _made(problem)
    assert hash(made) != hash(_made(problem | {"smoothing": {"beta": 2.6}}))
    assert repr(made) != repr(_made(problem | {"ridge": {"weight": 0.4}}))


def test_a_group_of_features_holds_their_coefficients_for_every_output() -> None:
    """Row-major W (4 features, 3 classes): feature j is coordinates 3 j to 3 j + 2."""
    problem = {
        "name": "softmax_regression",
        "regulariser": {"group_lasso": {"weight": 1, "groups": {"size": 3}}},
    }
    made = _made(problem, {"link": "softmax"})
    assert isinstance(made, SoftmaxRegression)
    assert made.composite.group_lasso.groups == (tuple(range(9)), tuple(range(9, 12)))


BAD = {
    "smoothing={beta: 1}": "problem.smoothing | smooth already | hinge_loss",
    "name=hinge_loss & smoothing={beta: 0}": "problem.smoothing.beta | greater than 0",
    "name=absolute_error": "problem.name | 2 classes | hinge_loss",
    "name=hinge": "problem.name | 'hinge' | hinge_loss",
    GROUPS % "[[0, 1]]" + " & constraint={name: box, lower: -1, upper: 1}": (
        "problem.constraint.name | 'box' | closed-form | l2_ball"
    ),
    "regulariser={group_lasso: {weight: 0.1, groups: [[0], [4]]}}": "group_lasso.groups.1 | 4 | 0 to 3",
    "regulariser={group_lasso: {weight: 0.1, groups: [[0, 1], [1]]}}": (
        "groups.1 | disjoint | feature 1 is in group 0"
    ),
    "regulariser={group_lasso: {weight: 0.1, groups: [[1, 1]]}}": "groups.0 | disjoint",
    "regulariser={group_lasso: {weight: 0.1, groups: [[-1]]}}": "groups | -1 | greater than or equal to 0",
    "regulariser={group_lasso: {weight: 0.1, groups: {size: 0}}}": (
        "groups | size | greater than or equal to 1"
    ),
    "ridge={weight: 1, centre: [1, 2]}": "ridge.centre | 4 parameters, not 2",
    "ridge={weight: -1}": "problem.ridge.weight | -1",
    "ridge={weight: 1, centre: .inf}": "problem.ridge.centre | finite",
}


@pytest.mark.parametrize("overrides", BAD)
def test_bad_problems_name_field_value_and_remedy(overrides: str, tmp_path: Path) -> None:
    sets = [part for override in overrides.split(" & ") for part in ("--set", f"problem.{override}")]
    line = refusal("privacy", write(tmp_path, GOOD), *sets)
    assert lacking(line, BAD[overrides]) == [], line


@pytest.mark.parametrize("name", ["hinge_loss", "absolute_error"])
def test_a_run_with_every_wrapper(name: str, tmp_path: Path) -> None:
    link = "logistic" if name == "hinge_loss" else "linear"
    problem = {"name": name, "smoothing": {"beta": 1.0}, "ridge": {"weight": 0.1, "centre": 0.5}}
    tree = GOOD | {"problem": problem, "data": GOOD["data"] | {"link": link}}
    invoke("simulate", write(tmp_path, tree), "--out", tmp_path / "run")


# Networks in a scenario: the shipped one prices and trains, and bad input names its field.

SHIPPED = Path(__file__).parents[2] / "scenarios" / "mlp_digits.yaml"


def scenario(problem: dict[str, Any], data: dict[str, Any] | None = None) -> Any:
    digits = {"name": "digits", "task": "digit", "intercept": False}
    algorithm = {"name": "prox_sgd", "num_rounds": 3, "step_size": 0.1, "clip_norm": 1.0}
    return parse(BASE | {"data": data or digits, "problem": problem, "algorithm": algorithm})


BAD_NETWORKS = {
    "{name: neural_network}": "scenario.problem.model | required with neural_network",
    "{name: softmax_regression, model: {name: mlp}}": "scenario.problem.model | needs problem.name",
    "{name: neural_network, model: perceptron}": "scenario.problem.model.name | mlp, paired_mlp, lenet",
    "{name: neural_network, model: {name: mlp, widths: [4]}}": "scenario.problem.model.widths | unknown key",
    "{name: neural_network, model: {name: lenet, image: [1, 28, 28]}}": "scenario.problem.model.image | 64",
    "{name: neural_network, model: {name: module, path: 'support.network_modules:batch_norm'}}": (
        "scenario.problem.model | BatchNorm1d"
    ),
    "{name: neural_network, model: {name: module, path: 'nowhere:Net'}}": (
        "scenario.problem.model.path | cannot be imported"
    ),
}


@pytest.mark.parametrize("problem", BAD_NETWORKS)
def test_bad_input_names_its_field(problem: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(scenario(yaml.safe_load(problem)))
    assert lacking(caught.value, BAD_NETWORKS[problem]) == []
    assert caught.value.field == BAD_NETWORKS[problem].partition(" | ")[0]


def test_the_dry_run_and_the_run_begin_at_the_same_public_point() -> None:
    resolved = resolve(scenario({"name": "neural_network", "model": "mlp"}))
    assert len(resolved.trace.plan.rounds) == 3
    assert resolved.problem.dimension == 64 * 64 + 64 + 64 * 10 + 10


def test_a_regression_network_runs() -> None:
    data = {"name": "synthetic", "link": "linear", "rows": 80, "features": 3}
    resolved = resolve(scenario({"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}, data))
    trial = trial_of(resolved, 0)
    errors = [m.error for m in trial.advance(60)]
    assert trial.finished
    assert len(errors) == 8


def test_the_shipped_scenario_learns_the_digits() -> None:
    resolved = resolve(load(SHIPPED, ["trials=1", "report.evaluate_every=80"]))
    trial = trial_of(resolved, 0)
    last = {m.variant: m.error for m in trial.advance(120)}
    assert trial.finished
    assert last["private"] < 0.15
    assert last["nonprivate"] < 0.05
