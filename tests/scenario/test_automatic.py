"""`auto`: bounds hold for every record, steps are safe, rounds and noise in balance, records unread."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.scenarios import once

import fedsim
from fedsim.data.arrays import Arrays
from fedsim.problems.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.scenario.automatic import DISTANCE
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.theory.averaged_noise import Kind, averaged_noise

AUTO = {"num_rounds": "auto", "step_size": "auto", "clip_norm": "auto"}


def tree(epsilon: Any = 1.0, algorithm: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    given = once(
        data={"name": "breast_cancer"},
        partition={"name": "iid", "num_partitions": 5},
        problem={"name": "logistic_regression"},
        algorithm={"name": "accelerated_minibatch_sgd", **AUTO, **(algorithm or {})},
        privacy={"epsilon": epsilon},
    )
    return given | changes


def resolved(*args: Any, **changes: Any) -> Resolved:
    return resolve(parse(tree(*args, **changes)))


def arrays(features: np.ndarray, scale: float = 1.0) -> Arrays:
    target = np.arange(len(features)) % 2
    return Arrays(features, target, ["a", "b", "c"] * (len(features) // 3), ranges=(-scale, scale))


@pytest.mark.parametrize("options", [{}, {"intercept": False}, {"record_norm": 2.0}])
def test_norms_bound_every_record_and_are_those_of_evenly_spread_ones(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    spread, corners = rng.uniform(-3, 3, (3000, 7)), rng.choice([-3.0, 3.0], (300, 7))
    for features, place in ((spread, 1), (corners, 0)):
        data = arrays(features, 3.0).model_copy(update=options)
        run = resolve(parse(tree(data=data, partition="natural_id")))
        assert run.outline.squared_norms is not None
        (silo, *_) = fedsim.data.federation.load(data, run.scenario.partition, 0, 0).silos
        squares = (silo.train.features**2).sum(axis=1)
        assert squares.max() <= run.outline.squared_norms[0] * (1 + 1e-12)
        assert squares.mean() == pytest.approx(run.outline.squared_norms[place], rel=0.03)


def test_a_category_counts_as_its_levels_do(tmp_path: Any) -> None:
    rows = [f"{i % 7},{'xyz'[i % 3]},{i % 2},{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["n,c,y,s", *rows]))
    schema: dict[str, Any] = {
        "n": {"kind": "number", "lower": 0, "upper": 6},
        "c": {"kind": "category", "categories": ["x", "y", "z"]},
        "y": {"kind": "category", "categories": ["0", "1"]},
    }
    data = {
        "name": "csv",
        "path": str(tmp_path / "t.csv"),
        "target": "y",
        "silo_column": "s",
        "schema": schema,
    }
    run = resolved(data=data, partition="natural_id")
    assert run.outline.squared_norms == pytest.approx((1 + 5 / 9 + 1, 1 / 3 + 4 / 9 + 1))


@pytest.mark.parametrize(
    "problem",
    [LogisticRegression(1), LinearRegression(1), SoftmaxRegression(1, 4)],
    ids=lambda p: type(p).__name__,
)
def test_no_record_curves_more_than_the_stated_curvature(problem: Any) -> None:
    torch.manual_seed(0)
    shape = (problem.num_outputs,) if problem.num_outputs > 1 else ()
    scores = torch.cat([torch.zeros(1, *shape), 3 * torch.randn(400, *shape)]).double()
    scores[1] = (
        torch.tensor([9.0, 9.0, -9.0, -9.0]) if shape else 0.0
    )  # softmax is steepest between two classes
    target = torch.zeros(()).double()

    def loss(score: torch.Tensor) -> torch.Tensor:
        return problem.losses(score.unsqueeze(0), target.unsqueeze(0)).sum()

    def largest(score: torch.Tensor) -> float:
        hessian = torch.autograd.functional.hessian(loss, score).reshape(problem.num_outputs, -1)
        return float(torch.linalg.eigvalsh(hessian).max())

    found = max(map(largest, scores))
    assert problem.curvature * 0.99 < found <= problem.curvature * (1 + 1e-9)


def excess(run: Resolved, rounds: int, step: float) -> float:
    """The sum that `auto` makes small, written down once more."""
    assert run.outline.squared_norms is not None
    kind = Kind(run.algorithm.batch, rounds)
    phi2 = averaged_noise(run.premises).variance(run.algorithm.clip_norm, kind, [kind])
    grown = 0.25 * run.outline.squared_norms[1] * step**2 * rounds**3 / 12 * phi2 / 2
    return DISTANCE**2 * 2 / (step * rounds**2) + grown


@pytest.mark.parametrize("epsilon", [0.5, [1, 1, 2, 2, 4], 8.0])
def test_rounds_and_step_are_in_balance(epsilon: Any) -> None:
    run = resolved(epsilon)
    assert run.outline.squared_norms is not None
    limit = 4 / run.outline.squared_norms[0]
    rounds, step = run.algorithm.num_rounds, run.algorithm.step_size
    assert step <= limit * 1.05
    chosen = excess(run, rounds, step)
    grid = [(T, limit * f) for T in range(1, 4 * rounds) for f in np.geomspace(0.02, 1.0, 25)]
    assert chosen <= 1.1 * min(excess(run, T, eta) for T, eta in grid)
    assert chosen < 0.6 * excess(run, 2 * rounds, limit)
    assert chosen < 0.6 * excess(run, max(1, rounds // 2), limit)


def test_a_larger_budget_means_more_rounds_and_no_privacy_the_most() -> None:
    rounds = [resolved(epsilon).algorithm.num_rounds for epsilon in (0.5, 1.0, 4.0)]
    free = resolved(privacy={"mechanism": "none"}).algorithm
    assert rounds == sorted(set(rounds))
    assert (free.num_rounds, free.step_size) == (500, pytest.approx(4 / 31, rel=0.05))


def test_given_rounds_lower_the_step_where_noise_is_large() -> None:
    steps = [resolved(0.2, algorithm={"num_rounds": rounds}).algorithm.step_size for rounds in (5, 50, 500)]
    assert steps[0] == pytest.approx(4 / 31, rel=0.05)
    assert steps[0] > steps[1] > steps[2]


def test_other_records_of_the_same_ranges_get_the_same_numbers() -> None:
    rng = np.random.default_rng(2)
    runs = [
        resolve(parse(tree(data=arrays(rows), partition="natural_id")))
        for rows in (rng.uniform(-1, 1, (300, 4)), np.zeros((300, 4)))
    ]
    assert runs[0].derived == runs[1].derived
    assert set(runs[0].derived.reasons) == set(AUTO)


def test_the_resolved_scenario_has_numbers() -> None:
    run = resolved()
    again = resolve(parse(run.scenario.model_dump(mode="json", exclude_none=True)))
    assert again.algorithm == run.algorithm
    assert again.derived is None


@pytest.mark.parametrize("name", ["local_sgd", "fedprox", "scaffold", "prox_sgd", "noisy_minibatch_sgd"])
def test_algorithms_of_gradient_steps_have_a_rule(name: str) -> None:
    local = {"local_steps": 3} if name in ("local_sgd", "fedprox", "scaffold") else {}
    pull = {"proximal_weight": 0.1} if name == "fedprox" else {}
    run = resolved(algorithm={"name": name, "num_rounds": 20, **local, **pull})
    assert 0 < run.algorithm.step_size <= 4 / 31 * 1.05


def test_secure_aggregation_has_less_noise_and_more_rounds() -> None:
    private = {"mechanism": "summed_gaussian", "epsilon": 1.0, "honest_fraction": 0.8}
    alone, together = resolved(), resolved(privacy=private)
    assert together.algorithm.num_rounds > alone.algorithm.num_rounds


KINKED = {"problem": {"name": "hinge_loss"}}
NETWORK = {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}}
SIGMA = {"privacy": {"epsilon": 1.0, "calibration": "sigma", "sigma": 0.1}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"algorithm": {"name": "fedadam"}}, "algorithm.step_size"),
        ({"algorithm": {"name": "fedadam", "num_rounds": 5}}, "algorithm.step_size"),
        (KINKED, "algorithm.step_size"),
        (NETWORK, "algorithm.num_rounds"),
        (SIGMA, "privacy.calibration"),
        ({"data": {"name": "breast_cancer", "scaling": "none"}}, "algorithm.step_size"),
    ],
)
def test_without_a_rule_a_number_is_asked_for(changes: dict[str, Any], field: str) -> None:
    with refused(f"scenario.{field}", "sigma" if changes is SIGMA else "auto"):
        resolved(**changes)


def test_a_smoothed_kink_and_a_network_have_rules() -> None:
    given = {"num_rounds": 5, "step_size": 0.1}
    assert resolved(algorithm=given, **KINKED).algorithm.clip_norm == 3.3
    smooth = resolved(problem={"name": "hinge_loss", "smoothing": {"beta": 8.0}})
    assert smooth.algorithm.step_size <= 1 / 8
    network = resolved(algorithm={"name": "prox_sgd", "num_rounds": 5}, **NETWORK)
    assert (network.algorithm.clip_norm, network.algorithm.step_size) == (1.0, 1.0)


@pytest.mark.parametrize(("step", "warned"), [(2.5, False), (2.6, True)])
def test_a_step_that_oscillates_is_warned_of(step: float, warned: bool) -> None:
    """beta = 31 / 4 with 30 features in [-1, 1] and the constant one; the slope is bounded."""
    assert bool(resolved(algorithm={"step_size": step, "num_rounds": 3}).warnings(())) is warned


@pytest.mark.parametrize(("step", "warned"), [(0.66, False), (0.67, True)])
def test_a_step_that_diverges_is_warned_of(tmp_path: Path, step: float, warned: bool) -> None:
    """beta = 3 with two numbers in [-1, 1] and the constant one. All records at an end do diverge there."""
    (tmp_path / "t.csv").write_text(
        "\n".join(["x,z,y,s", *(f"1,1,{i % 2},{'ab'[i % 2]}" for i in range(40))])
    )
    column = {"kind": "number", "lower": -1, "upper": 1}
    data = {"name": "csv", "path": str(tmp_path / "t.csv"), "target": "y", "silo_column": "s"}
    data["schema"] = dict.fromkeys("xzy", column)
    given = {"name": "noisy_minibatch_sgd", "num_rounds": 400, "step_size": step, "clip_norm": 1.0}
    given["last_iterate"] = True
    made = tree(algorithm=given, data=data, partition="natural_id", problem="linear_regression")
    run = resolve(parse(made | {"privacy": {"mechanism": "none"}}))
    assert bool(run.warnings(())) is warned
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fedsim.simulate(run.scenario, progress=False)
    assert (result.summary.metrics.loss > 10) is warned
