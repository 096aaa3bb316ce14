"""Models of silos' own: mean-regularised training beside its equations, its optimum and its limits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import drive, iterates, open_gate, plan_of, public_of, silos_of
from support.scenarios import BASE

from fedsim.algorithms.mean_regularised import MeanRegularised
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.common.errors import InputError
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression
from fedsim.scenario.load import parse

SIZES, WEIGHTS, ETA = (30, 45, 60), np.array([0.6, 0.3, 0.1]), 0.3
PROBLEM = LinearRegression(3)
DATA = silos_of(PROBLEM, SIZES)


def gradient(i: int, w: np.ndarray) -> np.ndarray:
    x, y = DATA[i]
    return x.T @ (x @ w - y) / len(y)


def trained(
    algorithm: Any, problem: LinearRegression = PROBLEM, silos: range = range(3)
) -> tuple[np.ndarray, np.ndarray]:
    """Without noise: the model (d,), and the silos' own parts (silos, d)."""
    data, sizes, weights = DATA[: len(silos)], SIZES[: len(silos)], WEIGHTS[: len(silos)]
    plan = plan_of(algorithm, problem, sizes)
    gate = open_gate(data, problem, algorithm, epsilon=math.inf, mechanism="none", plan=plan)
    rounds = [list(silos)] * len(plan.rounds)
    *_, last = drive(gate, algorithm, problem, public_of(sizes, weights / weights.sum()), rounds)
    return last.answer.numpy(), gate.gate.memory["own"].numpy()


def settings(**more: Any) -> MeanRegularised:
    return MeanRegularised(**{"num_rounds": 7, "step_size": ETA, "clip_norm": 50.0, **more})


def test_a_step_is_the_gradient_s_for_the_shared_part_and_proximal_for_the_own() -> None:
    eta, pull = 0.2, 0.7
    w, v = np.zeros(3), np.zeros((3, 3))
    for _ in range(7):
        g = np.array([gradient(i, w + v[i]) for i in range(3)])
        w, v = w - ETA * WEIGHTS @ g, (v - eta * g) / (1 + eta * pull)
    found = trained(settings(own_step_size=eta, pull=pull))
    np.testing.assert_allclose(found[0], w, atol=1e-13)
    np.testing.assert_allclose(found[1], v, atol=1e-13)


def test_the_textbooks_form_has_models_near_their_mean() -> None:
    """w_i <- prox of lambda / 2 |w_i - mean|^2 at w_i - eta g_i, and the mean is that of the new models."""
    pull = 0.7
    models = np.zeros((3, 3))
    for _ in range(7):
        mean = WEIGHTS @ models
        steps = models - ETA * np.array([gradient(i, models[i]) for i in range(3)])
        models = (steps + ETA * pull * mean) / (1 + ETA * pull)
    answer, own = trained(settings(pull=pull, form="textbook"))
    np.testing.assert_allclose(answer, mean, atol=1e-13)
    np.testing.assert_allclose(answer + own, models, atol=1e-13)


@pytest.mark.parametrize("form", ["two_steps", "textbook"])
def test_both_forms_reach_the_optimum_of_the_same_objective(form: str) -> None:
    """The normal equations of sum_i p_i (F_i(w + v_i) + lambda |v_i|^2 / 2) in (w, v_1, v_2, v_3)."""
    pull = 0.4
    hessians = [x.T @ x / len(y) for x, y in DATA]
    sides = [x.T @ y / len(y) for x, y in DATA]
    matrix, side = np.zeros((12, 12)), np.zeros(12)
    for i, (p, h, b) in enumerate(zip(WEIGHTS, hessians, sides, strict=True)):
        both = np.hstack([np.eye(3), *(np.eye(3) * (i == k) for k in range(3))])
        matrix += p * both.T @ h @ both
        matrix[3 + 3 * i : 6 + 3 * i, 3 + 3 * i : 6 + 3 * i] += p * pull * np.eye(3)
        side += p * both.T @ b
    best = np.linalg.solve(matrix, side)
    own = {} if form == "textbook" else {"own_step_size": 0.1}
    answer, parts = trained(settings(num_rounds=900, pull=pull, form=form, **own))
    np.testing.assert_allclose(answer + parts, best[:3] + best[3:].reshape(3, 3), atol=1e-6)


def test_models_are_means_of_iterates_that_forget() -> None:
    rho, w, v, means = 0.6, np.zeros(3), np.zeros((3, 3)), [np.zeros(3), np.zeros((3, 3))]
    for _ in range(7):
        g = np.array([gradient(i, w + v[i]) for i in range(3)])
        w, v = w - ETA * WEIGHTS @ g, (v - 0.2 * g) / (1 + 0.2 * 0.7)
        means = [rho * mean + (1 - rho) * one for mean, one in zip(means, (w, v), strict=True)]
    found = trained(settings(own_step_size=0.2, pull=0.7, averaging=rho))
    np.testing.assert_allclose(found[0], means[0], atol=1e-13)
    np.testing.assert_allclose(found[1], means[1], atol=1e-13)


@pytest.mark.parametrize("own", [{"own_step_size": 0.0, "pull": 0.3}, {"own_step_size": 0.5, "pull": 1e9}])
def test_without_own_steps_or_with_a_strong_pull_it_is_minibatch_sgd(own: dict[str, float]) -> None:
    problem = LinearRegression(3, composite=Composite(l2=0.1))
    plain = NoisyMinibatchSGD(num_rounds=7, step_size=ETA, clip_norm=1.0, last_iterate=True)
    expected = iterates(plain, problem, DATA, epsilon=1.0)
    found = iterates(settings(clip_norm=1.0, **own), problem, DATA, epsilon=1.0)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8 if own["own_step_size"] else 0)


def test_of_one_silo_the_own_model_is_local_training() -> None:
    """Without a pull both parts move along the same gradient: minibatch SGD with the sum of the steps."""
    answer, own = trained(settings(own_step_size=0.2, pull=0.0), silos=range(1))
    local = NoisyMinibatchSGD(num_rounds=7, step_size=ETA + 0.2, clip_norm=50.0, last_iterate=True)
    np.testing.assert_allclose(answer + own[0], iterates(local, PROBLEM, DATA[:1])[-1], atol=1e-13)


def test_beside_it_are_one_model_and_each_silo_alone() -> None:
    algorithm = settings(own_step_size=0.2, pull=0.7)
    one, alone = algorithm.beside()["one"], algorithm.beside()["alone"]
    plain = NoisyMinibatchSGD(num_rounds=7, step_size=ETA, clip_norm=50.0, last_iterate=True)
    answer, own = trained(one)
    assert not own.any()
    np.testing.assert_array_equal(answer, iterates(plain, PROBLEM, DATA, weights=WEIGHTS)[-1])
    answer, own = trained(alone)
    assert not answer.any()
    by_itself = NoisyMinibatchSGD(num_rounds=7, step_size=0.2, clip_norm=50.0, last_iterate=True)
    for i in range(3):
        np.testing.assert_allclose(own[i], iterates(by_itself, PROBLEM, [DATA[i]])[-1], atol=1e-13)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"own_step_size": -0.1, "pull": 0.1}, "own_step_size"),
        ({"own_step_size": 0.1, "pull": -1}, "pull"),
        ({"pull": 0.1}, "own_step_size"),
        ({"pull": 0.1, "own_step_size": 0.1, "form": "textbook"}, "own_step_size"),
        ({"pull": 0.1, "form": "other"}, "form"),
        ({"pull": 0.1, "own_step_size": 0.1, "averaging": 1.0}, "averaging"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_field(given: dict[str, Any], field: str) -> None:
    algorithm = {"name": "mean_regularised", "num_rounds": 2, "step_size": 1, "clip_norm": 1, **given}
    with pytest.raises(InputError) as refused:
        parse({**BASE, "algorithm": algorithm}).algorithm.build()
    assert refused.value.field == f"scenario.algorithm.{field}"
