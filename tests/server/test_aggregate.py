"""The server's sum: unbiased for every weighting, and the weighted mean where all take part."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.algorithm_table import ROWS
from support.helpers import DirectLink, asking, drive, open_gate, plan_of, public_of, scripted, silos_of
from support.refusals import refused
from support.summing import SumsLink, sums_gate
from torch import Tensor

from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.common.errors import Refused
from fedsim.privacy.registry import MECHANISMS, check_serves
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression, LogisticRegression
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.contract import Algorithm, Query
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.pool import Pool
from fedsim.protocol.statistics import Extent
from server.aggregate import Totals, coefficients, combine, summed, weighted
from server.loop import run
from server.participation import rounds_of_silos, schedule

WEIGHTS = (1 / 6, 1 / 6, 1 / 6, 1 / 2)
CENTRES = np.array([0.0, 0.0, 0.0, 1.0])
WEIGHTED_MEAN = 0.5


def test_coefficients_are_n_p_over_m():
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    found = coefficients(weights, [0, 3], 4)
    np.testing.assert_allclose(found, [4 / 6 / 2, 4 / 2 / 2])
    np.testing.assert_allclose(coefficients(7 * weights, [0, 3], 4), found)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300))
def test_where_all_take_part_the_coefficients_are_the_weights_bit_for_bit(raw):
    weights = torch.tensor(raw, dtype=torch.float64)
    assert torch.equal(coefficients(weights, range(len(raw)), len(raw)), weights / weights.sum())


@given(st.lists(st.tuples(st.floats(1e-2, 1e2), st.floats(-1e3, 1e3)), min_size=2, max_size=6), st.data())
def test_the_mean_over_all_sets_of_a_size_is_the_weighted_sum(silos, data):
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
def test_the_sum_of_all_is_numpys_weighted_mean(silos):
    weights, rows = np.array([w for w, _ in silos]), np.array([row for _, row in silos])
    messages = {"a": torch.from_numpy(rows), "b": torch.from_numpy(-2 * rows)}
    found = combine(messages, coefficients(torch.from_numpy(weights), range(len(silos)), len(silos)))
    expected = np.average(rows, axis=0, weights=weights)
    np.testing.assert_allclose(found["a"], expected, atol=1e-9)
    np.testing.assert_allclose(found["b"], -2 * expected, atol=1e-9)
    assert found["a"].shape == (3,)


def test_the_sum_keeps_the_messages_type():
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
def test_few_silos_a_round_lead_to_the_weighted_optimum(active, local):
    """Weights scaled to sum 1 over those that answer lead to 0.242 at M = 1, where the optimum is 0.5."""
    settings = {"num_rounds": 2000, "step_size": 0.02, "clip_norm": 10.0}
    steps = NoisyMinibatchSGD(**settings, last_iterate=True)
    path = _path(LocalSGD(**settings, local_steps=2) if local else steps, active)
    settled = float(torch.stack(path[500:]).mean())
    assert settled == pytest.approx(WEIGHTED_MEAN, abs=0.02)


def test_a_round_of_local_sgd_moves_by_the_coefficient_and_stays_in_the_set():
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


# Secure aggregation, read: the message that silos would have sent, weighed and added.

SIZES, TOTAL_WEIGHTS = (4, 10, 30), (0.2, 0.5, 0.3)
PROBLEM = LogisticRegression(3)
POOL = Pool(SIZES, TOTAL_WEIGHTS, 2, 1.0)
GRID = SummedGaussian(Extent(3, 3), 2, 1.0)
LINEAR = [row for row in ROWS if row.short(FULL).linear]


@pytest.mark.parametrize("row", LINEAR, ids=lambda row: row.name)
@pytest.mark.parametrize("batch", [FULL, Subsample(0.5)], ids=["full", "half"])
def test_without_noise_the_model_is_that_of_silos_that_answer_alone(row, batch):
    """To the rounding of the grid, 2^-20 of the clip; sizes and weights differ, and two of three answer."""
    algorithm, data = row.short(batch), silos_of(PROBLEM, SIZES)
    plan, public = plan_of(algorithm, PROBLEM, SIZES), public_of(SIZES, TOTAL_WEIGHTS)
    schedule = [[0, 1], [1, 2], [0, 2], [0, 1, 2]] * 4
    rounds = schedule[: len(plan.rounds)]
    totals = Totals(algorithm, PROBLEM, plan, GRID, POOL, torch.float64)
    link = SumsLink(sums_gate(data, PROBLEM, algorithm, GRID, POOL), totals)
    alone = DirectLink(open_gate(data, PROBLEM, algorithm, epsilon=float("inf")).answer)
    *_, together = run(algorithm, PROBLEM, public, 0, link, rounds, summed)
    begun, *_, apart = run(algorithm, PROBLEM, public, 0, alone, rounds, weighted)
    assert (together.answer - apart.answer).abs().max() < 1e-5
    assert (apart.answer - begun.answer).abs().max() > 1e-3  # and it has gone somewhere


def _read(half: Any, asks: int = 1, totals: Tensor | None = None) -> dict[str, Tensor]:
    """What a server reads with a silo method of so many asks."""
    plan = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),) * asks,))
    reader = Totals(scripted(half, 1), PROBLEM, plan, GRID, POOL, torch.float64)
    values = {str(k): torch.full((3,), 2.0**20).double() if totals is None else totals for k in range(asks)}
    return reader.message(0, {"w": torch.zeros(3, dtype=torch.float64)}, values, [0, 1, 2])


def test_an_affine_message_is_read_as_it_is():
    """sum_i a_i (2 x_i + w + 1) with a_i = p_i: 2 X + 1; X = total / 2^20 u N / M, u = 0.05."""
    read = _read(lambda w, ask, memory: {"g": 2 * asking()(w, ask, memory)["g"] + w + 1})
    assert read["g"].tolist() == pytest.approx([2 * 0.05 + 1] * 3)


def test_what_is_left_of_a_constant_is_weighed_too():
    """With two of three silos the a_i sum to N (p_0 + p_1) / M = 1.05."""
    plan = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),),))
    half = scripted(lambda w, ask, memory: {"g": asking()(w, ask, memory)["g"] + 1}, 1)
    reader = Totals(half, PROBLEM, plan, GRID, POOL, torch.float64)
    read = reader.message(
        0, {"w": torch.zeros(3).double()}, {"0": torch.zeros(3, dtype=torch.float64)}, [0, 1]
    )
    assert read["g"].tolist() == pytest.approx([1.05] * 3)


def _following(w: Tensor, ask: Any, memory: Any) -> dict[str, Tensor]:
    first = asking()(w, ask, memory)["g"]
    return {"g": ask(Query("gradient", (w + first.reshape(-1),), 1.0, FULL))}


def _clipping(w: Tensor, ask: Any, memory: Any) -> dict[str, Tensor]:
    """A clip that follows from an answer."""
    first = asking()(w, ask, memory)["g"]
    return {"g": ask(Query("gradient", (w,), 1.0 + float(first.norm()), FULL))}


@pytest.mark.parametrize("half", [_following, _clipping])
def test_a_silo_method_whose_questions_follow_from_answers_is_refused(half):
    with pytest.raises(Refused, match="depends on answers"):
        _read(half, asks=2)


@pytest.mark.parametrize("bent", [torch.square, torch.relu, lambda x: x / (1 + x.norm())])
def test_a_message_that_is_not_affine_in_answers_is_refused(bent):
    total = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64) * 2**20
    with pytest.raises(Refused, match="not affine"):
        _read(lambda w, ask, memory: {"g": bent(asking()(w, ask, memory)["g"] - 0.01)}, totals=total)


def test_a_silo_method_that_remembers_or_asks_less_is_refused():
    def remembering(w: Tensor, ask: Any, memory: Any) -> dict[str, Tensor]:
        memory["g"] = w
        return dict(asking()(w, ask, memory))

    with pytest.raises(Refused, match="keeps memory"):
        _read(remembering)
    with pytest.raises(Refused, match="asks less"):
        _read(asking(), asks=2)


def test_algorithms_that_compute_with_answers_are_refused_with_the_reason():
    for row in ROWS:
        for mechanism in MECHANISMS.values():
            kind = type(row.short(FULL))
            if mechanism.sums_only and not kind.linear:
                said = f"{row.name} computes with each silo's own noisy answers", "use one of gaussian, none"
                with refused("scenario.privacy.mechanism", mechanism.name, *said):
                    check_serves(mechanism, row.name, kind)
            else:
                check_serves(mechanism, row.name, kind)
    others = {row.name for row in ROWS if not row.short(FULL).linear}
    assert others == {"fedprox", "local_sgd", "mean_regularised", "scaffold"}
