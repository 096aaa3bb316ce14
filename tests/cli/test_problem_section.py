"""The `problem` section: what it makes, and how it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.problems.composite import GroupLasso, L2Ball, Ridge
from fedsim.problems.glm import GeneralisedLinear, HingeLoss, SoftmaxRegression
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve

GOOD: dict[str, Any] = {
    "name": "good",
    "data": {"name": "synthetic", "rows": 100, "features": 3},
    "partition": {"name": "iid", "num_partitions": 4},
    "problem": {"name": "logistic_regression"},
    "algorithm": {"name": "prox_sgd", "num_rounds": 5, "step_size": 0.1, "clip_norm": 1.0},
    "privacy": {"epsilon": 1.0},
    "runtime": "inprocess",
}
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
    "smooth already": (["smoothing={beta: 1}"], ["problem.smoothing", "smooth already", "hinge_loss"]),
    "beta zero": (["name=hinge_loss", "smoothing={beta: 0}"], ["problem.smoothing.beta", "greater than 0"]),
    "hinge for numbers": (["name=absolute_error"], ["problem.name", "2 classes", "hinge_loss"]),
    "unknown loss": (["name=hinge"], ["problem.name", "'hinge'", "hinge_loss"]),
    "group lasso in a box": (
        [GROUPS % "[[0, 1]]", "constraint={name: box, lower: -1, upper: 1}"],
        ["problem.constraint.name", "'box'", "closed-form", "l2_ball"],
    ),
    "no such feature": ([GROUPS % "[[0], [4]]"], ["group_lasso.groups.1", "4", "0 to 3"]),
    "feature in two groups": (
        [GROUPS % "[[0, 1], [1]]"],
        ["groups.1", "disjoint", "feature 1 is in group 0"],
    ),
    "feature twice in a group": ([GROUPS % "[[1, 1]]"], ["groups.0", "disjoint"]),
    "negative feature": ([GROUPS % "[[-1]]"], ["groups", "-1", "greater than or equal to 0"]),
    "group of size zero": ([GROUPS % "{size: 0}"], ["groups", "size", "greater than or equal to 1"]),
    "centre of another length": (
        ["ridge={weight: 1, centre: [1, 2]}"],
        ["ridge.centre", "4 parameters, not 2"],
    ),
    "ridge negative": (["ridge={weight: -1}"], ["problem.ridge.weight", "-1"]),
    "centre infinite": (["ridge={weight: 1, centre: .inf}"], ["problem.ridge.centre", "finite"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_problems_name_field_value_and_remedy(case: str, tmp_path: Path) -> None:
    overrides, expected = BAD[case]
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    sets = [part for override in overrides for part in ("--set", f"problem.{override}")]
    result = CliRunner().invoke(app, ["privacy", str(path), *sets])
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    for text in expected:
        assert text in result.output, result.output


@pytest.mark.parametrize("name", ["hinge_loss", "absolute_error"])
def test_a_run_with_every_wrapper(name: str, tmp_path: Path) -> None:
    link = "logistic" if name == "hinge_loss" else "linear"
    problem = {"name": name, "smoothing": {"beta": 1.0}, "ridge": {"weight": 0.1, "centre": 0.5}}
    tree = GOOD | {"problem": problem, "data": GOOD["data"] | {"link": link}}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(tree))
    result = CliRunner().invoke(
        app, ["simulate", str(tmp_path / "scenario.yaml"), "--out", str(tmp_path / "run")]
    )
    assert result.exit_code == 0, result.output
