"""The server's sum: unbiased for every weighting, and the weighted mean where all take part."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import drive, open_gate, plan_of, public_of
from torch import Tensor

from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.problems.composite import Composite, L2Ball
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.contract import Algorithm
from server.aggregate import coefficients, combine
from server.participation import rounds_of_silos, schedule

WEIGHTS = (1 / 6, 1 / 6, 1 / 6, 1 / 2)
CENTRES = np.array([0.0, 0.0, 0.0, 1.0])
WEIGHTED_MEAN = 0.5


def test_coefficients_are_n_p_over_m() -> None:
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    found = coefficients(weights, [0, 3], 4)
    np.testing.assert_allclose(found, [4 / 6 / 2, 4 / 2 / 2])
    np.testing.assert_allclose(coefficients(7 * weights, [0, 3], 4), found)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300))
def test_where_all_take_part_the_coefficients_are_the_weights_bit_for_bit(raw: list[float]) -> None:
    weights = torch.tensor(raw, dtype=torch.float64)
    assert torch.equal(coefficients(weights, range(len(raw)), len(raw)), weights / weights.sum())


@given(
    st.lists(st.tuples(st.floats(1e-2, 1e2), st.floats(-1e3, 1e3)), min_size=2, max_size=6),
    st.data(),
)
def test_the_mean_over_all_sets_of_a_size_is_the_weighted_sum(
    silos: list[tuple[float, float]], data: st.DataObject
) -> None:
    weights, values = torch.tensor(silos, dtype=torch.float64).T
    size = data.draw(st.integers(1, len(silos)))
    sets = list(combinations(range(len(silos)), size))
    sums = [
        combine({"m": values[list(members), None]}, coefficients(weights, members, len(silos)))["m"]
        for members in sets
    ]
    expected = float(weights @ values / weights.sum())
    assert float(torch.stack(sums).mean()) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1e3), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3)), min_size=1
    )
)
def test_the_sum_of_all_is_numpys_weighted_mean(silos: list[tuple[float, list[float]]]) -> None:
    weights, rows = np.array([w for w, _ in silos]), np.array([row for _, row in silos])
    messages = {"a": torch.from_numpy(rows), "b": torch.from_numpy(-2 * rows)}
    found = combine(messages, coefficients(torch.from_numpy(weights), range(len(silos)), len(silos)))
    expected = np.average(rows, axis=0, weights=weights)
    np.testing.assert_allclose(found["a"], expected, atol=1e-9)
    np.testing.assert_allclose(found["b"], -2 * expected, atol=1e-9)
    assert found["a"].shape == (3,)


def test_the_sum_keeps_the_messages_type() -> None:
    whole = coefficients(torch.ones(2, dtype=torch.float64), range(2), 2)
    assert combine({"a": torch.ones(2, 3, dtype=torch.float32)}, whole)["a"].dtype == torch.float32


def _path(algorithm: Algorithm, active: int | None, problem: LinearRegression | None = None) -> list[Tensor]:
    """Silo i's loss is (w - c_i)^2 / 2; no noise."""
    problem = problem or LinearRegression(1)
    data = [(np.ones((4, 1)), np.full(4, c)) for c in CENTRES]
    holds = [False] * len(plan_of(algorithm, problem, (4,) * 4).rounds)
    rounds = schedule(4, active, holds, seed=0, trial=0)
    gate = open_gate(
        data, problem, algorithm, epsilon=np.inf, mechanism="none", rounds=rounds_of_silos(rounds, 4)
    )
    return [p.answer for p in drive(gate, algorithm, problem, public_of((4,) * 4, WEIGHTS), rounds)]


@pytest.mark.parametrize(
    ("active", "local"),
    [
        (2, False),
        (2, True),
        *(pytest.param(m, local, marks=pytest.mark.slow) for m in (1, 3, None) for local in (False, True)),
    ],
)
def test_few_silos_a_round_lead_to_the_weighted_optimum(active: int | None, local: bool) -> None:
    """Weights scaled to sum 1 over whoever answers lead to 0.242 at M = 1, where the optimum is 0.5."""
    settings = {"num_rounds": 2000, "step_size": 0.02, "clip_norm": 10.0}
    steps = NoisyMinibatchSGD(**settings, last_iterate=True)
    path = _path(LocalSGD(**settings, local_steps=2) if local else steps, active)
    settled = float(torch.stack(path[500:]).mean())
    assert settled == pytest.approx(WEIGHTED_MEAN, abs=0.02)


def test_a_round_of_local_sgd_moves_by_the_coefficient_and_stays_in_the_set() -> None:
    """From w = 0 silo 3 goes to 0.5; alone it counts 4 p_3 = 2 and the others, which stay, 4 p_i = 2/3."""
    for active, radius, expected in ((1, 9.0, {0.0, 1.0}), (1, 0.7, {0.0, 0.7}), (None, 9.0, {0.25})):
        problem = LinearRegression(1, composite=Composite(constraint=L2Ball(radius)))
        seen = set()
        for seed in range(6):
            rounds = schedule(4, active, [False], seed, 0)
            algorithm = LocalSGD(num_rounds=1, local_steps=1, step_size=0.5, clip_norm=10.0)
            data = [(np.ones((4, 1)), np.full(4, c)) for c in CENTRES]
            gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
            ends = drive(gate, algorithm, problem, public_of((4,) * 4, WEIGHTS), rounds)
            seen.add(round(float(ends[-1].answer), 12))
        assert seen == expected
