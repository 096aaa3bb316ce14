"""Properties of every algorithm: see `algorithm_table`, and `fedsim.testing` for what they are."""

import numpy as np
import pytest
from support import helpers
from support.algorithm_table import ROWS, Row
from support.helpers import silos_of

from fedsim.algorithms.registry import algorithms
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression
from fedsim.problems.regularisers import L2Ball
from fedsim.testing import PROPERTIES, Property
from fedsim.testing.convergence import CASES, SIZES, WEIGHTS, answers_of, case_of, pooled

LONG = {"accelerated_minibatch_sgd"}
"""They take ten times the rounds of others to their optimum."""


def _is_slow(row: Row, name: str) -> bool:
    return row.name in LONG and "optimum" in name and not name.endswith(": linear")


every_pair = pytest.mark.parametrize(
    ("row", "check"),
    [
        pytest.param(
            row,
            check,
            id=f"{check.name}-{row.name}",
            marks=[pytest.mark.slow] if _is_slow(row, check.name) else [],
        )
        for check in PROPERTIES
        for row in ROWS
    ],
)


def test_every_registered_algorithm_of_steps_has_a_row() -> None:
    """Those of other statistics than gradients, and of parts, have tests of their own."""
    kinds = {name: kind for name, kind in algorithms().items() if "batch" in kind.__dataclass_fields__}
    of_steps = [name for name, kind in kinds.items() if not getattr(kind, "any_size", False)]
    assert [row.name for row in sorted(ROWS, key=lambda row: row.name)] == of_steps


@every_pair
def test_it_has_the_property(row: Row, check: Property) -> None:
    if check.left_out(row):
        with pytest.raises(AssertionError):  # else the row need not leave it out
            check.holds(row)
    else:
        check.holds(row)


@pytest.mark.parametrize("row", [row for row in ROWS if row.averaged], ids=lambda row: row.name)
@pytest.mark.parametrize("case_name", CASES)
def test_without_noise_a_mean_of_iterates_nears_the_optimum_as_one_over_r(row: Row, case_name: str) -> None:
    case = case_of(case_name)
    answers = answers_of(case, row.convergent(1 / case.smoothness))
    half = (len(answers) - 1) // 2
    # Progress r holds the mean of the first r + 1 iterates.
    ratio = case.distance(answers[2 * half - 1]) / case.distance(answers[half - 1])
    assert ratio == pytest.approx(0.5, rel=1e-3)


def test_minibatch_sgd_takes_projected_steps_and_returns_the_mean() -> None:
    """w <- project(w - eta (sum p_i g_i + l2 w)), written out in NumPy."""
    problem = LinearRegression(3, composite=Composite(l2=0.1, constraint=L2Ball(0.2)))
    data = silos_of(problem, SIZES)
    algorithm = algorithms()["noisy_minibatch_sgd"](num_rounds=6, step_size=0.4, clip_norm=1.0)
    found = helpers.iterates(algorithm, problem, data, weights=WEIGHTS)
    x, y, share = pooled(data, WEIGHTS)
    w, iterates = np.zeros(3), []
    for _ in range(6):
        iterates.append(w)
        w = w - 0.4 * (x.T @ (share * (x @ w - y)) + 0.1 * w)
        w = w * min(1.0, 0.2 / np.linalg.norm(w))
    for r, answer in enumerate(found[:-1]):
        np.testing.assert_allclose(answer, np.mean(iterates[: r + 1], 0), atol=1e-14)
    np.testing.assert_allclose(found[-1], np.mean(iterates, 0), atol=1e-14)


def test_local_sgd_averages_where_the_silos_end() -> None:
    """K projected steps of each silo from the common point, written out in NumPy."""
    problem = LinearRegression(3, composite=Composite(l2=0.1, constraint=L2Ball(0.2)))
    data = silos_of(problem, SIZES)
    algorithm = algorithms()["local_sgd"](num_rounds=3, local_steps=4, step_size=0.3, clip_norm=1.0)
    common = np.zeros(3)
    for answer in helpers.iterates(algorithm, problem, data, weights=WEIGHTS):
        np.testing.assert_allclose(answer, common, atol=1e-14)
        ends = []
        for x, y in data:
            w = common
            for _ in range(4):
                w = w - 0.3 * (x.T @ (x @ w - y) / len(y) + 0.1 * w)
                w = w * min(1.0, 0.2 / np.linalg.norm(w))
            ends.append(w)
        common = np.average(ends, axis=0, weights=WEIGHTS)
