"""FedProx, FedAdam and SCAFFOLD, written out in NumPy as their papers print them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.helpers import iterates, plan_of, silos_of

from fedsim.algorithms.fedadam import FedAdam
from fedsim.algorithms.fedprox import FedProx
from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.scaffold import Scaffold
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.copies import CohortMemory
from server.participation import schedule

SIZES, WEIGHTS, ROUNDS, STEPS, ETA = (30, 45, 60), np.array([0.6, 0.3, 0.1]), 6, 4, 0.3
SETTINGS = {"num_rounds": ROUNDS, "local_steps": STEPS, "step_size": ETA, "clip_norm": 1.0}
PROBLEM = LinearRegression(3, composite=Composite(l2=0.1))
PLAIN = LinearRegression(3)
DATA = silos_of(PROBLEM, SIZES)
SOME = [[0, 2], [1], [0, 1], [1, 2], [2], [0]]
EVERYONE = [[0, 1, 2]] * ROUNDS


def answers(
    algorithm: Algorithm, rounds: Sequence[Sequence[int]] = EVERYONE, problem: LinearRegression = PROBLEM
) -> np.ndarray:
    """Before every round and at the end, without noise."""
    found = iterates(algorithm, problem, DATA, rounds=rounds, weights=WEIGHTS)
    return np.array([each.numpy() for each in found])


def gradient(i: int, w: np.ndarray, l2: float = 0.1) -> np.ndarray:
    """Of silo i's objective, its public part included."""
    x, y = DATA[i]
    return x.T @ (x @ w - y) / len(y) + l2 * w


def test_fedprox_descends_on_the_proximal_objective() -> None:
    """Algorithm 2: w_i approaches argmin F_i(w) + mu / 2 |w - w_r|^2; the server averages."""
    mu, common = 0.8, np.zeros(3)
    for found in answers(FedProx(proximal_weight=mu, **SETTINGS)):
        np.testing.assert_allclose(found, common, atol=1e-13)
        ends = [common.copy() for _ in DATA]
        for i in range(3):
            for _ in range(STEPS):
                ends[i] = ends[i] - ETA * (gradient(i, ends[i]) + mu * (ends[i] - common))
        common = np.average(ends, axis=0, weights=WEIGHTS)


def test_fedprox_without_a_pull_is_local_sgd_and_with_a_strong_one_stays() -> None:
    settings = SETTINGS | {"step_size": 0.01}
    np.testing.assert_array_equal(
        answers(FedProx(proximal_weight=0.0, **settings)), answers(LocalSGD(**settings))
    )
    free, held = (np.linalg.norm(answers(FedProx(proximal_weight=mu, **settings))[1]) for mu in (0.0, 90.0))
    assert held < 0.4 * free


def test_fedadam_takes_adams_steps_on_the_mean_gradient() -> None:
    """Algorithm 2 with K = 1 and eta_l = 1, so that Delta is minus the gradient: no bias correction."""
    beta1, beta2, tau = 0.7, 0.9, 0.05
    algorithm = FedAdam(ROUNDS, ETA, 1.0, beta1, beta2, tau)
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for found in answers(algorithm):
        np.testing.assert_allclose(found, x, atol=1e-13)
        delta = -sum(p * gradient(i, x) for i, p in enumerate(WEIGHTS))
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta**2
        x = x + ETA * m / (np.sqrt(v) + tau)


@pytest.mark.parametrize("rounds", [EVERYONE, SOME], ids=["all silos", "some silos"])
def test_scaffold_is_algorithm_1_with_option_2(rounds: Sequence[Sequence[int]]) -> None:
    """eta_g = 1, with the weights of silos in place of 1 / N: N p_i f_i for f_i."""
    x, c, own = np.zeros(3), np.zeros(3), np.zeros((3, 3))
    for found, members in zip(answers(Scaffold(**SETTINGS), rounds, PLAIN), [*rounds, []], strict=True):
        np.testing.assert_allclose(found, x, atol=1e-13)
        way, change = np.zeros(3), np.zeros(3)
        for i in members:
            y, scale = x, 3 * WEIGHTS[i]
            for _ in range(STEPS):
                y = y - ETA * (gradient(i, y, 0) - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * ETA)
            way, change = way + scale * (y - x), change + scale * (new - own[i])
            own[i] = new
        if members:
            x, c = x + way / len(members), c + len(members) / 3 * change / len(members)


def test_scaffold_corrects_the_drift_that_local_sgd_keeps() -> None:
    """Silos that disagree, long local runs: only control variates lead to the common optimum."""
    x = np.concatenate([np.sqrt(p / len(y)) * x for p, (x, y) in zip(WEIGHTS, DATA, strict=True)])
    y = np.concatenate([np.sqrt(p / len(y)) * y for p, (_, y) in zip(WEIGHTS, DATA, strict=True)])
    optimum = np.linalg.solve(x.T @ x + 0.1 * np.eye(3), x.T @ y)
    settings = SETTINGS | {"num_rounds": 60, "local_steps": 6}
    rounds = schedule(3, 2, [False] * 60, 0, 0)

    def distance(algorithm: Algorithm, members: Sequence[Sequence[int]]) -> float:
        return float(np.linalg.norm(answers(algorithm, members)[-1] - optimum))

    assert distance(LocalSGD(**settings), [[0, 1, 2]] * 60) > 1e-3
    assert distance(Scaffold(**settings), [[0, 1, 2]] * 60) < 1e-9
    assert distance(Scaffold(**settings), rounds) < 1e-9  # two of three silos a round


def test_scaffold_remembers_the_mean_of_the_answers_that_it_was_given() -> None:
    given = iter(torch.arange(1.0, 5.0, dtype=torch.float64)[:, None, None].expand(4, 2, 3))
    memory = CohortMemory(2, 3, torch.float64)
    algorithm = Scaffold(num_rounds=1, local_steps=4, step_size=0.1, clip_norm=1.0)
    zero = torch.zeros(3, dtype=torch.float64)
    said = algorithm.silo(PROBLEM, {"w": zero, "c": zero}, lambda *_: next(given), memory)
    assert set(memory) == {"c"}
    assert torch.equal(memory["c"], torch.full((2, 3), 2.5, dtype=torch.float64))
    assert torch.equal(said["change"], memory["c"])


def test_what_each_pays_for_is_its_local_steps() -> None:
    """As local SGD, K queries a round; FedAdam one."""
    local = plan_of(LocalSGD(**SETTINGS), PROBLEM, SIZES)
    assert plan_of(FedProx(proximal_weight=1.0, **SETTINGS), PROBLEM, SIZES) == local
    assert plan_of(Scaffold(**SETTINGS), PROBLEM, SIZES) == local
    assert [len(asks) for asks in plan_of(FedAdam(ROUNDS, ETA, 1.0), PROBLEM, SIZES).rounds] == [1] * ROUNDS
