"""upsilon_*^2 and phi^2: closed forms, like and unlike silos, and why there may be no number."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.scenarios import once
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.measure.objective import _moments, measure
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.minimise import minimiser
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import read

GOOD = once(
    data={"name": "synthetic", "rows": 2000, "features": 3, "link": "linear"},
    partition={"name": "iid", "num_partitions": 4},
    problem={"name": "linear_regression", "silo_weights": "size"},
    algorithm={"num_rounds": 2, "step_size": 0.1},
)
SORTED = {"name": "sorted", "by": "target", "num_partitions": 4}


def found(**changes: Any) -> dict[str, Any]:
    resolved = resolve(parse(GOOD | changes))
    return measure(resolved, read(resolved, 0).silos)


def test_silos_with_known_optima_have_the_closed_form():
    # One feature that is 1 and no noise: F_i(w) = (w - c_i)^2 / 2, so grad F_i(w*) = w* - c_i.
    centres, weights = np.array([1.0, 2.0, 6.0]), [0.5, 0.3, 0.2]
    spread = torch.tensor([-1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    pairs = [(torch.ones(4, 1, dtype=torch.float64), c + spread * (i + 1)) for i, c in enumerate(centres)]
    problem = LinearRegression(1)
    optimum = minimiser(problem, pairs, weights)
    assert float(optimum) == pytest.approx(centres @ weights)
    gradients, variances = _moments(problem, pairs, optimum, weights)
    scale = 3 * np.array(weights)  # the thesis has weights as F_i times N p_i
    np.testing.assert_allclose(gradients[:, 0], scale * (centres @ weights - centres))
    np.testing.assert_allclose(variances, scale**2 * [0.5, 2.0, 4.5])  # the targets' variances


@pytest.mark.parametrize("problem", [LogisticRegression(3), SoftmaxRegression(3, 3), LinearRegression(3)])
def test_moments_are_those_of_the_records_gradients(problem):
    rng = np.random.default_rng(0)
    problem = type(problem)(problem.num_features, problem.num_outputs, Composite(l2=0.1))
    pairs = [
        (torch.from_numpy(rng.normal(size=(n, 3))), torch.from_numpy(rng.integers(2, size=n)).double())
        for n in (40, 60)
    ]
    optimum = minimiser(problem, pairs, [0.3, 0.7])
    gradients, variances = _moments(problem, pairs, optimum, [0.3, 0.7])
    for (x, y), mean, variance, p in zip(pairs, gradients, variances, (0.3, 0.7), strict=True):
        slope = torch.func.grad(lambda w, a, b: problem.losses(problem.scores(a, w), b).sum())
        each = torch.stack([slope(optimum, x[i : i + 1], y[i : i + 1]) for i in range(len(y))])
        each = 2 * p * each
        torch.testing.assert_close(each.mean(0) + 0.1 * optimum, mean)
        torch.testing.assert_close((each - each.mean(0)).square().sum(-1).mean(), variance)
    # Newton's point is stationary for these weights and for no others.
    assert gradients.mean(0) == pytest.approx(torch.zeros(problem.dimension), abs=1e-10)
    assert (torch.tensor([0.7, 0.3], dtype=torch.float64) @ gradients).norm() > 1e-3


def test_like_silos_differ_little_and_sorted_silos_much():
    classes = {"data": {"name": "synthetic", "rows": 2000, "features": 3}, "problem": "logistic_regression"}
    like, unlike = found(**classes), found(**classes, partition=SORTED)
    assert 0 < like["upsilon_star_sq"] < 0.01 * unlike["upsilon_star_sq"]
    assert like["phi_sq_at_optimum"] > like["phi_sq_mean_at_optimum"] > 0


def test_it_is_measured_at_the_training_optimum():
    resolved = resolve(parse(GOOD | {"partition": SORTED}))
    silos = read(resolved, 0).silos
    x = np.vstack([silo.train.features for silo in silos])
    y = np.concatenate([silo.train.target for silo in silos])
    w = np.linalg.lstsq(x, y, rcond=None)[0]  # silo_weights size: the pooled least squares
    slopes = [
        s.train.features.T @ (s.train.features @ w - s.train.target) / len(s.train.target) for s in silos
    ]
    expected = np.mean([slope @ slope for slope in slopes])
    assert measure(resolved, silos)["upsilon_star_sq"] == pytest.approx(expected, rel=1e-9)


NO_OPTIMUM: dict[str, tuple[dict[str, Any], str]] = {
    "l1": ({"problem": {"name": "linear_regression", "regulariser": {"l1": 0.1}}}, "l1"),
    "constraint": (
        {"problem": {"name": "linear_regression", "constraint": {"name": "l2_ball", "radius": 1e-3}}},
        "constraint",
    ),
    "separable": (
        {"data": {"name": "breast_cancer"}, "problem": {"name": "logistic_regression"}},
        "separable",
    ),
}


@pytest.mark.parametrize("case", NO_OPTIMUM)
def test_without_an_optimum_there_is_a_reason_and_no_number(case):
    changes, reason = NO_OPTIMUM[case]
    result = found(**changes)
    assert reason in result["reason"]
    assert result["upsilon_star_sq"] is result["phi_sq_at_optimum"] is None


def test_a_constraint_that_does_not_bind_changes_nothing():
    roomy = {
        "name": "linear_regression",
        "silo_weights": "size",
        "constraint": {"name": "l2_ball", "radius": 1e3},
    }
    assert found(problem=roomy) == found()


@pytest.mark.parametrize("asked", [False, True])
def test_it_is_reported_only_when_asked_and_marked_as_not_private(asked, tmp_path):
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(GOOD | {"report": {"heterogeneity": asked}}))
    result = CliRunner().invoke(app, ["simulate", str(scenario), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert ("heterogeneity" in summary) is asked
    assert any(note.startswith("heterogeneity") for note in summary["privacy"]["not_private"]) is asked
    if asked:
        assert summary["heterogeneity"]["note"] == "simulation only, not private"
