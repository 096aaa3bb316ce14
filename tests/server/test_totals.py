"""Sums over silos, read: the message that silos would have sent, weighed and added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from support.algorithm_table import ROWS, Row
from support.helpers import GateLink, asking, open_gate, plan_of, public_of, scripted, silos_of
from support.summing import SumsLink, sums_gate
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.mechanisms.registry import MECHANISMS, check_serves
from fedsim.mechanisms.shuffled_binomial import ShuffledBinomial
from fedsim.mechanisms.summed_gaussian import SummedGaussian
from fedsim.problems.glm import LogisticRegression
from fedsim.protocol.batch import FULL, Batch, Subsample
from fedsim.protocol.contract import Query
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.pool import Pool
from server.aggregate import summed, weighted
from server.loop import run
from server.totals import Totals

SIZES, WEIGHTS = (4, 10, 30), (0.2, 0.5, 0.3)
PROBLEM = LogisticRegression(3)
POOL = Pool(SIZES, WEIGHTS, 2, 1.0)
GRID = SummedGaussian(3, 2, 1.0)
LINEAR = [row for row in ROWS if row.short(FULL).linear]


@pytest.mark.parametrize("row", LINEAR, ids=lambda row: row.name)
@pytest.mark.parametrize("batch", [FULL, Subsample(0.5)], ids=["full", "half"])
def test_without_noise_the_model_is_that_of_silos_that_answer_alone(row: Row, batch: Batch) -> None:
    """To the rounding of the grid, 2^-20 of the clip; sizes and weights differ, and two of three take part."""
    algorithm, data = row.short(batch), silos_of(PROBLEM, SIZES)
    plan, public = plan_of(algorithm, PROBLEM, SIZES), public_of(SIZES, WEIGHTS)
    schedule = [[0, 1], [1, 2], [0, 2], [0, 1, 2]] * 4
    rounds = schedule[: len(plan.rounds)]
    totals = Totals(algorithm, PROBLEM, plan, GRID, POOL, torch.float64)
    link = SumsLink(sums_gate(data, PROBLEM, algorithm, GRID, POOL), totals)
    alone = GateLink(open_gate(data, PROBLEM, algorithm, epsilon=float("inf")))
    *_, together = run(algorithm, PROBLEM, public, 0, link, rounds, summed)
    *_, apart = run(algorithm, PROBLEM, public, 0, alone, rounds, weighted)
    assert (together.answer - apart.answer).abs().max() < 1e-5
    *_, start = run(algorithm, PROBLEM, public, 0, alone_again(data, row, batch), rounds[:1], weighted)
    assert (apart.answer - start.answer).abs().max() > 1e-3  # and it has gone somewhere


def alone_again(data: Any, row: Row, batch: Batch) -> GateLink:
    return GateLink(open_gate(data, PROBLEM, row.short(batch), epsilon=float("inf")))
