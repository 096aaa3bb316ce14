"""With noise, the excess risk follows the theorems' exponents in eps, n, N and d.

Every algorithm of chapter 3 has, on strongly convex (Theorems 34, 37), proximal-PL (40, 42) and composite
objectives (44, its last term), a privacy term of order L^2 d / (eps^2 n^2 N), up to logarithms and
condition numbers. On a quadratic of curvature 1 and after enough rounds that only noise is left (each
row's `settled`), the excess risk is a constant of the algorithm times the noise variance of the mean
message, z^2 (2C)^2 d / (n^2 N). So its slope on a log-log scale must be -2 in n, -1 in N, +1 in d, and
in eps that of z^2: a little flatter than -2, since exact Gaussian accounting gains where eps is large.
The squared gradient mapping, in which Theorem 44 is stated, is twice the excess risk here.

Gates here share their noise bits over eps and n, so slopes in these have little sampling error (0.02 in eps
over 64 seeds, where not only noise is left); those in N and d have a standard deviation of at most 0.05, and
an interval that is five times as wide on either side.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.linalg import hadamard
from support.algorithm_table import ROWS, Row, final
from support.helpers import drive, open_gate, plan_of, public_of

from fedsim.problems.glm import LinearRegression
from server.participation import schedule

BASE = {"eps": 1.0, "n": 3200, "N": 4, "d": 8}
VALUES = {"eps": (0.5, 1, 2, 4), "n": (1600, 3200, 6400, 12800), "N": (2, 4, 8, 16), "d": (2, 4, 8, 16)}
SEEDS = {"eps": 64, "n": 4, "N": 48, "d": 48}
INTERVALS = {"eps": (-2.2, -1.7), "n": (-2.15, -1.85), "N": (-1.25, -0.75), "d": (0.75, 1.25)}

Budget = Callable[[dict[str, float]], float]


def excess_risk(row: Row, at: dict[str, float], seeds: int, budget: Budget) -> float:
    """Mean over seeds of F(w) - F*, exact: the pooled Hessian is the identity and w* is known."""
    n, silos, d = int(at["n"]), int(at["N"]), int(at["d"])
    x = np.tile(hadamard(16)[:, :d].astype(float), (n // 16, 1))
    optimum = np.full(d, 0.2 / np.sqrt(d))
    # Silos disagree about the optimum, half of them to either side.
    data = [(x, x @ optimum * (1 + 0.5 * (-1) ** i)) for i in range(silos)]
    problem, public = LinearRegression(d), public_of([n] * silos)
    plan = plan_of(row.settled, problem, [n] * silos)
    rounds = schedule(silos, None, [False] * len(plan.rounds), 0, 0)
    estimate = final if row.averaged else row.estimate
    risks = []
    for seed in range(seeds):
        gate = open_gate(data, problem, row.settled, epsilon=budget(at), seed=seed, plan=plan)
        answers = [event.answer for event in drive(gate, row.settled, problem, public, rounds)]
        risks.append(np.square(estimate(answers).numpy() - optimum).sum() / 2)
    return float(np.mean(risks))


def slope(row: Row, variable: str, budget: Budget = lambda at: at["eps"]) -> float:
    """Least-squares slope of log excess risk against the log of one variable, the others at their base."""
    values = VALUES[variable]
    risks = [excess_risk(row, {**BASE, variable: v}, SEEDS[variable], budget) for v in values]
    return float(np.polyfit(np.log(values), np.log(risks), 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("variable", VALUES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_excess_risk_has_the_theorems_exponent(row: Row, variable: str) -> None:
    low, high = INTERVALS[variable]
    assert low <= slope(row, variable) <= high


WRONG: dict[str, Budget] = {
    "eps": lambda at: at["eps"] ** 0.5,
    "n": lambda at: at["eps"] * (BASE["n"] / at["n"]) ** 0.5,
    "N": lambda at: at["eps"] * (BASE["N"] / at["N"]) ** 0.5,
    "d": lambda at: at["eps"] * (at["d"] / BASE["d"]) ** 0.5,
}
"""Budgets that change the noise variance by one power of a variable."""


@pytest.mark.slow
@pytest.mark.parametrize("variable", VALUES)
def test_noise_of_another_scale_is_noticed(variable: str) -> None:
    """The same intervals reject a noise variance that is off by one power of eps, n, N or d."""
    low, high = INTERVALS[variable]
    row = next(row for row in ROWS if row.name == "noisy_minibatch_sgd")
    assert not low <= slope(row, variable, WRONG[variable]) <= high
