"""Sums over silos, read: the message that silos would have sent, weighed and added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.algorithm_table import ROWS, Row
from support.helpers import GateLink, asking, open_gate, plan_of, public_of, scripted, silos_of
from support.summing import SumsLink, sums_gate
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.mechanisms.registry import MECHANISMS, check_serves
from fedsim.mechanisms.summed_gaussian import SummedGaussian
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL, Batch, Subsample
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.pool import Pool
from server.aggregate import Totals, summed, weighted
from server.loop import run

SIZES, WEIGHTS = (4, 10, 30), (0.2, 0.5, 0.3)
PROBLEM = LogisticRegression(3)
POOL = Pool(SIZES, WEIGHTS, 2, 1.0)
GRID = SummedGaussian(3, 2, 1.0)
LINEAR = [row for row in ROWS if row.short(FULL).linear]


@pytest.mark.parametrize("row", LINEAR, ids=lambda row: row.name)
@pytest.mark.parametrize("batch", [FULL, Subsample(0.5)], ids=["full", "half"])
def test_without_noise_the_model_is_that_of_silos_that_answer_alone(row: Row, batch: Batch) -> None:
    """To the rounding of the grid, 2^-20 of the clip; sizes and weights differ, and two of three answer."""
    algorithm, data = row.short(batch), silos_of(PROBLEM, SIZES)
    plan, public = plan_of(algorithm, PROBLEM, SIZES), public_of(SIZES, WEIGHTS)
    schedule = [[0, 1], [1, 2], [0, 2], [0, 1, 2]] * 4
    rounds = schedule[: len(plan.rounds)]
    totals = Totals(algorithm, PROBLEM, plan, GRID, POOL, torch.float64)
    link = SumsLink(sums_gate(data, PROBLEM, algorithm, GRID, POOL), totals)
    alone = GateLink(open_gate(data, PROBLEM, algorithm, epsilon=float("inf")))
    *_, together = run(algorithm, PROBLEM, public, 0, link, rounds, summed)
    begun, *_, apart = run(algorithm, PROBLEM, public, 0, alone, rounds, weighted)
    assert (together.answer - apart.answer).abs().max() < 1e-5
    assert (apart.answer - begun.answer).abs().max() > 1e-3  # and it has gone somewhere


def _read(half: Any, asks: int = 1, totals: Tensor | None = None) -> dict[str, Tensor]:
    """What a server reads with a silo half of so many asks."""
    plan = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),) * asks,))
    reader = Totals(scripted(half, 1), PROBLEM, plan, GRID, POOL, torch.float64)
    values = {str(k): torch.full((3,), 2.0**20).double() if totals is None else totals for k in range(asks)}
    return reader.message(0, {"w": torch.zeros(3, dtype=torch.float64)}, values, [0, 1, 2])


def test_an_affine_message_is_read_as_it_is() -> None:
    """sum_i a_i (2 x_i + w + 1) with a_i = p_i: 2 X + 1; X = total / 2^20 u N / M, u = 0.05."""
    read = _read(lambda w, ask, memory: {"g": 2 * asking()(w, ask, memory)["g"] + w + 1})
    assert read["g"].tolist() == pytest.approx([2 * 0.05 + 1] * 3)


def test_what_is_left_of_a_constant_is_weighed_too() -> None:
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
def test_a_silo_half_whose_questions_follow_from_answers_is_refused(half: Any) -> None:
    with pytest.raises(Refused, match="depends on answers"):
        _read(half, asks=2)


@pytest.mark.parametrize("bent", [torch.square, torch.relu, lambda x: x / (1 + x.norm())])
def test_a_message_that_is_not_affine_in_answers_is_refused(bent: Any) -> None:
    total = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64) * 2**20
    with pytest.raises(Refused, match="not affine"):
        _read(lambda w, ask, memory: {"g": bent(asking()(w, ask, memory)["g"] - 0.01)}, totals=total)


def test_a_silo_half_that_remembers_or_asks_less_is_refused() -> None:
    def remembering(w: Tensor, ask: Any, memory: Any) -> dict[str, Tensor]:
        memory["g"] = w
        return dict(asking()(w, ask, memory))

    with pytest.raises(Refused, match="keeps memory"):
        _read(remembering)
    with pytest.raises(Refused, match="asks less"):
        _read(asking(), asks=2)


def test_algorithms_that_compute_with_answers_are_refused_with_the_reason() -> None:
    for row in ROWS:
        for mechanism in MECHANISMS.values():
            kind = type(row.short(FULL))
            if mechanism.sums_only and not kind.linear:
                with pytest.raises(InputError, match="each silo's own noisy answers"):
                    check_serves(mechanism, row.name, kind)
            else:
                check_serves(mechanism, row.name, kind)
    assert {row.name for row in ROWS if not row.short(FULL).linear} == {
        "fedprox",
        "local_sgd",
        "scaffold",
    }
