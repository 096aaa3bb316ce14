"""With noise, where nothing is strongly convex, the excess risk follows the exponents of the convex theorem.

Theorem 37 bounds that of the accelerated algorithm by a constant times
L D sqrt(d ln(1/delta)) / (eps n sqrt(N)) where privacy rules. The objective is sharp, a mean absolute error
without label noise, to which no rate of strong convexity applies; it is minimised through its Moreau
envelope with Theorem 131's beta, and the step is 1 / max(2 beta, R^(3/2) V / D), V^2 = d sigma^2 / N being
the noise of the mean message. (Averaged subgradients are faster than their theorem's worst case here.)
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.linalg import hadamard
from support.helpers import DELTA, drive, open_gate, plan_of, public_of

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.privacy import gaussian
from fedsim.problems.composite import Composite, L2Ball
from fedsim.problems.glm import AbsoluteError
from server.participation import schedule

D, L, DIMENSION, ROUNDS = 2.0, 1.0, 8, 256
BASE = {"eps": 0.5, "n": 320, "N": 8}
VALUES = {"eps": (0.25, 0.5, 1, 2), "n": (160, 320, 640, 1280), "N": (2, 4, 8, 16)}
INTERVALS = {"eps": (-1.25, -0.75), "n": (-1.25, -0.75), "N": (-0.75, -0.25)}
SEEDS = 8

At = dict[str, float]


def noise(at: At) -> float:
    """V: root mean squared noise of the mean message of N silos, each calibrated for full batches."""
    z = math.sqrt(ROUNDS) / float(gaussian.mu(at["eps"], DELTA))
    return z * 2 * L / at["n"] * math.sqrt(DIMENSION / at["N"])


def excess_risk(at: At, budget: float) -> float:
    """Mean over seeds of F(w), which is 0 at the optimum."""
    n, silos = int(at["n"]), int(at["N"])
    x = np.tile(hadamard(16)[:, :DIMENSION] / math.sqrt(DIMENSION), (n // 16, 1))
    optimum = np.full(DIMENSION, 0.5 / math.sqrt(DIMENSION))
    beta = at["eps"] * n * math.sqrt(silos) * L / (math.sqrt(DIMENSION) * D)
    step = 1 / max(2 * beta, ROUNDS**1.5 * noise(at) / D)
    algorithm = AcceleratedMinibatchSGD(ROUNDS, step, clip_norm=L)
    problem = AbsoluteError(DIMENSION, composite=Composite(constraint=L2Ball(D / 2)), smoothing=beta)
    public, plan = public_of([n] * silos), plan_of(algorithm, problem, [n] * silos)
    rounds = schedule(silos, None, [False] * len(plan.rounds), 0, 0)
    risks = []
    for seed in range(SEEDS):
        gate = open_gate([(x, x @ optimum)] * silos, problem, algorithm, epsilon=budget, seed=seed, plan=plan)
        w = drive(gate, algorithm, problem, public, rounds)[-1].answer.numpy()
        risks.append(np.abs(x @ (w - optimum)).mean())
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
