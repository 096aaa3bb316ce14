"""`algorithm: auto`: chosen by public numbers alone, its numbers by the stated formulas, its words true."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from support.refusals import refused
from support.scenarios import once

import fedsim
from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.whitened_newton import Course, WhitenedNewton
from fedsim.data.arrays import Arrays
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.contract import Combined
from fedsim.protocol.query import Query
from fedsim.report.sections.worth import COSTS
from fedsim.scenario.load import parse
from fedsim.scenario.noise_cost import noise_cost
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.simulation.host import preview

RNG = np.random.default_rng(0)


def table(n: int = 6000, d: int = 10, classes: int = 2, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d))
    if not classes:  # a number, whose range is declared too
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(d)]).assign(
            y=x[:, 0], s=np.resize(["a", "b", "c"], n)
        )
        entry = {"kind": "number", "lower": -1.0, "upper": 1.0}
        return fedsim.Frame(frame, "y", "s", {name: entry for name in frame if name != "s"})
    target = rng.integers(classes, size=n)
    return Arrays(x, target, np.resize(["a", "b", "c"], n), ranges=(-1.0, 1.0))


PROBLEMS = {0: "linear_regression", 2: "logistic_regression", 3: "softmax_regression"}


def resolved(epsilon: Any = 8.0, classes: int = 2, n: int = 6000, d: int = 10, **changes: Any) -> Resolved:
    given = once(
        data=table(n, d, classes),
        partition="natural_id",
        problem={"name": PROBLEMS[classes], "silo_weights": "size"},
        privacy={"epsilon": epsilon},
    )
    return resolve(parse(given | {"algorithm": "auto"} | changes))


def mu_of(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian release of this epsilon and delta (Dong, Roth and Su 2022, Corollary 2.13)."""

    def over(mu: float) -> float:
        tail = math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        return float(norm.cdf(-epsilon / mu + mu / 2) - tail - delta)

    return float(brentq(over, 1e-3, 50))


def by_hand(run: Resolved, factor: float, h: float) -> float:
    """x: the noise of one release that has the whole budget, once more."""
    mus = [mu_of(epsilon, delta) for epsilon, delta in zip(run.epsilons, run.deltas, strict=True)]
    total = sum(run.sizes)
    s0 = math.sqrt(sum((n / total / (n * mu)) ** 2 for n, mu in zip(run.sizes, mus, strict=True)))
    p = run.outline.num_features
    return (2 * factor * math.sqrt(p) * s0) ** 2 / 0.8 * p / (16 * h**2)


@pytest.mark.parametrize(("classes", "factor", "h"), [(2, 0.75, 0.2), (3, 1.05, 1 / 3), (0, 0.6, 1.0)])
def test_numbers_follow_from_the_noise_of_one_release(classes: int, factor: float, h: float) -> None:
    run = resolved(classes=classes)
    assert isinstance(run.algorithm, WhitenedNewton)
    steps = 1.3 * by_hand(run, factor, h) ** -0.3
    held = min(max(steps, 3.0), 15.0 if classes else 6.0)
    assert run.algorithm.num_rounds == max(6, math.ceil(2 * held))
    assert run.algorithm.steps == pytest.approx(steps if classes == 2 else held, rel=0.01)
    assert run.outline.squared_norms is not None
    assert run.algorithm.moment_clip == pytest.approx(0.8 * run.outline.squared_norms[1], rel=0.01)


def test_noise_decides_between_the_moment_its_diagonal_and_the_other_algorithm() -> None:
    kinds = []
    for epsilon in (8.0, 2.0, 1.0, 0.3):
        run = resolved(epsilon, n=3000)
        x = by_hand(run, 0.75, 0.2)
        kind = "accelerated" if isinstance(run.algorithm, AcceleratedMinibatchSGD) else "whole"
        if isinstance(run.algorithm, WhitenedNewton) and run.algorithm.diagonal:
            kind = "diagonal"
        kinds.append(kind)
        assert kind == ("whole" if x < 0.003 else "diagonal" if x < 0.01 else "accelerated")
        assert run.derived is not None
        assert run.derived.values["name"] == run.scenario.algorithm.name
        said = "is not worth" if kind == "accelerated" else "is worth"
        assert said in run.derived.reasons["name"]
    assert set(kinds) == {"whole", "diagonal", "accelerated"}


def test_no_record_is_looked_at() -> None:
    one, other = (resolved(data=table(seed=seed)) for seed in (0, 1))
    assert one.algorithm == other.algorithm


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"problem": {"name": "hinge_loss", "smoothing": {"beta": 10.0}}}, "softmax and linear"),
        (
            {"privacy": {"epsilon": 8.0, "mechanism": "shuffled_binomial", "honest_fraction": 1.0}},
            "Gaussian noise",
        ),
        ({"participation": {"name": "uniform", "num_silos": 2}}, "all silos in every round"),
        (
            {"problem": {"name": "logistic_regression", "constraint": {"name": "l2_ball", "radius": 2}}},
            "constraint",
        ),
        ({"problem": {"name": "logistic_regression", "regulariser": {"l1": 0.1}}}, "regulariser"),
        ({"problem": {"name": "logistic_regression", "regulariser": {"l2": 0.1}}}, "regulariser"),
        ({"prepare": [{"name": "standardise", "share": 0.1}]}, "without prepare"),
        ({"data": table().model_copy(update={"intercept": False})}, "constant one"),
    ],
    ids=["kink", "noise", "uniform", "ball", "l1", "l2", "prepare", "intercept"],
)
def test_what_it_is_not_for_has_the_other_algorithm_and_the_reason(changes: Any, why: str) -> None:
    run = resolved(**changes)
    assert isinstance(run.algorithm, AcceleratedMinibatchSGD)
    assert run.derived is not None
    assert why in run.derived.reasons["name"]
    assert "whitened_newton" in run.derived.reasons["name"]


def test_bad_input_is_one_line() -> None:
    network = {"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}
    with refused("scenario.algorithm", "auto", "no rule chooses for a network"):
        resolved(problem=network)
    with refused("scenario.algorithm.steps", 4, "auto chooses the numbers"):
        resolved(algorithm={"name": "auto", "steps": 4})
    unbounded = Arrays(RNG.normal(size=(60, 3)), np.arange(60) % 2, ["a", "b", "c"] * 20)
    with refused("scenario.algorithm", "auto", "no public bound"):
        resolved(data=unbounded)
    named: dict[str, Any] = {"name": "whitened_newton", "num_rounds": 5, "moment_clip": "auto"}
    with refused("scenario.algorithm.moment_clip", "auto", "no public bound"):
        resolved(data=unbounded, algorithm=named)
    with refused("scenario.data.intercept", False, "true"):
        resolved(data=table().model_copy(update={"intercept": False}), algorithm=named | {"moment_clip": 2.0})


def test_a_named_algorithm_takes_auto_for_some_of_its_numbers() -> None:
    run = resolved(
        algorithm={"name": "whitened_newton", "num_rounds": 9, "moment_clip": "auto", "steps": 4.0}
    )
    assert (run.algorithm.num_rounds, run.algorithm.steps) == (9, 4.0)  # type: ignore[attr-defined]
    assert run.derived is not None
    assert set(run.derived.values) == {"moment_clip"}


@pytest.mark.parametrize("epsilon", [8.0, 0.3])
def test_rounds_that_are_given_stand_whichever_it_is(epsilon: float) -> None:
    run = resolved(epsilon, n=3000, algorithm={"name": "auto", "num_rounds": 4})
    assert run.algorithm.num_rounds == 4  # type: ignore[attr-defined]
    assert isinstance(run.algorithm, WhitenedNewton) == (epsilon == 8.0)


def test_a_moment_of_features_and_target_has_a_bound_for_both() -> None:
    run = resolved(classes=0, algorithm={"name": "sufficient_statistics", "moment_clip": "auto"})
    assert run.outline.squared_norms is not None
    assert run.algorithm.moment_clip == pytest.approx(0.8 * (run.outline.squared_norms[1] + 1 / 3), rel=0.01)  # type: ignore[attr-defined]


def test_a_run_says_what_was_chosen_and_its_advice_is_of_its_fields() -> None:
    given = once(
        data=table(2000, 4), partition="natural_id", problem="logistic_regression", privacy={"epsilon": 8.0}
    )
    run = fedsim.simulate(parse(given | {"algorithm": "auto"}), progress=False)
    assert run.summary.algorithm == "whitened_newton"
    assert run.summary.parameters is not None
    assert run.summary.parameters.values["name"] == "whitened_newton"


def test_advice_after_too_few_rounds_names_fields_of_what_ran() -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (6000, 4))
    target = (rng.random(6000) < 1 / (1 + np.exp(-6 * x[:, 0]))).astype(int)
    data = Arrays(x, target, np.resize(["a", "b", "c"], 6000), ranges=(-1.0, 1.0))
    given = once(data=data, partition="natural_id", problem="logistic_regression", privacy={"epsilon": 8.0})
    given |= {"report": {"metric": "log_loss"}, "trials": 2, "seed": 3}
    auto = {"algorithm": {"name": "auto", "num_rounds": 1}}
    summary = fedsim.simulate(parse(given | auto), progress=False).summary
    assert summary.costs is not None
    assert summary.costs.most == "rounds"
    (told,) = COSTS.lines(summary.costs, summary)  # type: ignore[misc]
    assert "try a larger num_rounds, with more steps, with algorithm.name=whitened_newton" in told


def test_the_cost_of_noise_is_a_share_of_the_loss_and_needs_no_ranges() -> None:
    run = resolved(2.0, n=6000)
    z = [each.noise_multiplier for each in preview(run)]
    assert isinstance(run.algorithm, WhitenedNewton)
    public, p, h = run.public(z), run.outline.num_features, 0.2
    sd = public.noise(Query("gradient", (), 0.75 * math.sqrt(p)))
    course = Course(run.algorithm, (p, 1), torch.tensor([0.5, 0.5]), sd)
    for _ in range(run.algorithm.num_rounds):
        course.step(torch.zeros(p, 1).double())
    expected = h * p * course.variance / 2  # what the mean of its iterates really has
    deployed = replace(run, outline=replace(run.outline, squared_norms=None))
    assert noise_cost(deployed, z) == noise_cost(run, z)
    assert 0.5 * expected < noise_cost(run, z) < 2 * expected


@pytest.mark.parametrize("name", ["accelerated_minibatch_sgd", "noisy_minibatch_sgd"])
def test_the_cost_of_noise_is_that_of_the_answer_of_gradient_steps(name: str) -> None:
    """Rounds of noise alone, in many coordinates: what it makes of the answer, which the step takes there."""
    numbers = {"name": name, "num_rounds": 24, "step_size": 0.3, "clip_norm": 1.0}
    run = resolved(2.0, algorithm=numbers)
    z = [each.noise_multiplier for each in preview(run)]
    sd = run.public(z).noise(Query("gradient", (), 1.0))
    many, rng = LogisticRegression(20_000), np.random.default_rng(0)
    server = run.algorithm.server(torch.zeros(20_000).double(), many, run.public(z), rng)
    try:
        next(server)
        while True:
            server.send(Combined({"g": torch.tensor(rng.normal(0, sd, 20_000))}, 1.0))
    except StopIteration as ended:
        variance = float(ended.value.var())
    norms = run.outline.squared_norms
    assert norms is not None
    assert noise_cost(run, z) == pytest.approx(0.2 * norms[1] * variance / 2, rel=0.15)
