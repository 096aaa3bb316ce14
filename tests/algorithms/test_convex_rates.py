"""With noise, where nothing is strongly convex, the excess risk follows the exponents of the convex theorem.

Theorem 37 bounds that of the accelerated algorithm by a constant times
L D sqrt(d ln(1/delta)) / (eps n sqrt(N)) where privacy rules. On one fixed problem the risk falls faster, so
each setting has an instance as of the lower bounds (Bassily, Smith and Thakurta 2014): a linear risk whose
slope is as large as the noise can hide. Records are unit vectors with labels 1 and -1, whose mean
absolute error is linear in the ball, and a majority proportional to 1 / (eps n sqrt(N)) decides its slope.
The step is 1 / max(2 beta, R^(3/2) V / D), V^2 = d sigma^2 / N being the noise of the mean message.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from support.helpers import DELTA, drive, open_gate, plan_of, public_of

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.privacy import gaussian
from fedsim.problems.composite import Composite
from fedsim.problems.glm import AbsoluteError
from fedsim.problems.regularisers import L2Ball
from server.participation import schedule

D, L, DIMENSION, ROUNDS = 2.0, 1.0, 8, 512
BASE = {"eps": 0.5, "n": 320, "N": 8}
VALUES = {"eps": (0.25, 0.5, 1, 2), "n": (160, 320, 640, 1280), "N": (2, 8, 32)}
INTERVALS = {"eps": (-1.15, -0.85), "n": (-1.15, -0.85), "N": (-0.65, -0.35)}
SEEDS = 8

At = dict[str, float]


def noise(at: At) -> float:
    """V: root mean squared noise of the mean message of N silos, each calibrated for full batches."""
    z = math.sqrt(ROUNDS) / float(gaussian.mu(at["eps"], DELTA))
    return z * 2 * L / at["n"] * math.sqrt(DIMENSION / at["N"])


def records(at: At) -> tuple[np.ndarray, np.ndarray]:
    """x (n, d) and labels (n,): of each unit vector's labels, 10 more than half are 1 at the base."""
    each = int(at["n"]) // DIMENSION
    more = 10 * BASE["eps"] / at["eps"] * math.sqrt(BASE["N"] / at["N"])  # of n/d: it falls with n by itself
    labels = np.where(np.arange(each) < each / 2 + more, 1.0, -1.0)
    return np.repeat(np.eye(DIMENSION), each, axis=0), np.tile(labels, DIMENSION)


def excess_risk(at: At, budget: float) -> float:
    """Mean over seeds of F(w) - F*; in the ball, F is linear, and the optimum has equal entries."""
    n, silos, (x, y) = int(at["n"]), int(at["N"]), records(at)
    optimum = np.full(DIMENSION, D / 2 / math.sqrt(DIMENSION))
    beta = at["eps"] * n * math.sqrt(silos) * L / (math.sqrt(DIMENSION) * D)
    step = 1 / max(2 * beta, ROUNDS**1.5 * noise(at) / D)
    algorithm = AcceleratedMinibatchSGD(ROUNDS, step, clip_norm=L)
    problem = AbsoluteError(DIMENSION, composite=Composite(constraint=L2Ball(D / 2)), smoothing=beta)
    public, plan = public_of([n] * silos), plan_of(algorithm, problem, [n] * silos)
    rounds = schedule(silos, None, [False] * len(plan.rounds), 0, 0)
    risks = []
    for seed in range(SEEDS):
        gate = open_gate([(x, y)] * silos, problem, algorithm, epsilon=budget, seed=seed, plan=plan)
        w = drive(gate, algorithm, problem, public, rounds)[-1].answer.numpy()
        risks.append(np.abs(x @ w - y).mean() - np.abs(x @ optimum - y).mean())
    return float(np.mean(risks))


Budget = Callable[[At], float]


def slope(variable: str, budget: Budget = lambda at: at["eps"]) -> float:
    """Least-squares slope of log excess risk against the log of one variable, the others at their base."""
    settings = [BASE | {variable: value} for value in VALUES[variable]]
    risks = [excess_risk(at, budget(at)) for at in settings]
    return float(np.polyfit(np.log(VALUES[variable]), np.log(risks), 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("variable", VALUES)
def test_the_excess_risk_has_the_convex_theorems_exponent(variable: str) -> None:
    low, high = INTERVALS[variable]
    assert low <= slope(variable) <= high


WRONG: dict[str, Budget] = {
    "eps": lambda at: BASE["eps"],
    "n": lambda at: at["eps"] * BASE["n"] / at["n"],
    "N": lambda at: at["eps"] * BASE["N"] / at["N"],
}
"""Budgets with which noise does not fall with the variable, or grows with N."""


@pytest.mark.slow
@pytest.mark.parametrize("variable", VALUES)
def test_noise_of_another_scale_is_noticed(variable: str) -> None:
    low, high = INTERVALS[variable]
    assert not low <= slope(variable, WRONG[variable]) <= high
