"""What the run directory keeps for the page: errors per silo, and what the rounds had cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.report_runs import SMALL, simulate

from fedsim.data.federation import SiloSplit
from fedsim.measure.evaluator import Evaluator
from fedsim.privacy import gaussian
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.terms import Admitted, Statement, Terms
from fedsim.results.silo_rows import chosen, prefixes


def evaluator(problem: GeneralisedLinear, targets: list[list[float]]) -> Evaluator:
    """Silos whose records have one feature, 1, so that every score is w."""
    empty = np.zeros((0, 1))
    silos = [
        SiloSplit(f"silo-{i}", empty, empty[:, 0], np.ones((len(y), 1)), np.array(y))
        for i, y in enumerate(targets)
    ]
    return Evaluator(problem, silos, torch.float64)


def test_a_silos_error_is_that_of_its_own_records() -> None:
    evaluate = evaluator(LogisticRegression(1), [[1.0, 1.0, 0.0, 0.0], [1.0], []])
    rows = evaluate.by_silo(torch.tensor([2.0], dtype=torch.float64))
    assert [row.silo for row in rows] == ["silo-0", "silo-1", "silo-2"]
    assert [row.error for row in rows] == [0.5, 0.0, None]
    assert [row.test_records for row in rows] == [4, 1, 0]
    assert rows[1].loss == pytest.approx(math.log1p(math.exp(-2)))
    assert rows[2].loss is None


def test_an_error_relative_to_a_silos_mean_needs_targets_that_differ() -> None:
    evaluate = evaluator(LinearRegression(1), [[1.0, 3.0], [2.0, 2.0], [5.0]])
    rows = evaluate.by_silo(torch.tensor([3.0], dtype=torch.float64))
    assert rows[0].error == pytest.approx(math.sqrt(2))
    assert [row.error for row in rows[1:]] == [None, None]
    assert [row.loss for row in rows] == pytest.approx([1.0, 0.5, 2.0])


def test_the_silos_average_to_the_error_of_the_run(small_run: Path) -> None:
    table = pq.read_table(small_run / "silos.parquet")
    assert b"simulation_only" in table.schema.metadata
    rows, metrics = table.to_pylist(), pq.read_table(small_run / "metrics.parquet").to_pylist()
    assert len(rows) == 2 * 2 * 3
    for trial in range(2):
        for variant in ("private", "nonprivate"):
            final = [m for m in metrics if (m["trial"], m["variant"]) == (trial, variant)][-1]
            own = [r for r in rows if (r["trial"], r["variant"]) == (trial, variant)]
            wrong = sum(r["error"] * r["test_records"] for r in own)
            assert wrong / sum(r["test_records"] for r in own) == pytest.approx(final["error"])


def test_the_spend_of_full_batches_is_the_gaussian_closed_form(small_run: Path) -> None:
    rows = pq.read_table(small_run / "spend.parquet").to_pylist()
    silos = json.loads((small_run / "summary.json").read_text())["privacy"]["silos"]
    assert {silo["name"] for silo in silos} == {row["silo"] for row in rows}
    for silo in silos:
        own = [row for row in rows if row["silo"] == silo["name"]]
        assert [row["round"] for row in own] == list(range(7))
        for row in own[1:]:
            mu = math.sqrt(row["round"]) / silo["noise_multiplier"]
            assert row["epsilon_spent"] == pytest.approx(float(gaussian.epsilon(mu, silo["delta"])), rel=1e-9)
        assert own[0]["epsilon_spent"] == 0
        assert own[-1]["epsilon_spent"] == silo["epsilon_spent"]
        assert {row["budget"] for row in own} == {silo["epsilon_budget"]}


def test_only_rounds_taken_part_in_cost(tmp_path: Path) -> None:
    tree = SMALL | {"trials": 1, "participation": {"name": "uniform", "num_silos": 1}}
    run = simulate(tmp_path, tree)
    rows, ledger = (pq.read_table(run / f"{name}.parquet").to_pylist() for name in ("spend", "ledger"))
    for silo in {row["silo"] for row in rows}:
        paid = [row["round"] + 1 for row in ledger if row["silo"] == silo]
        assert [row["round"] for row in rows if row["silo"] == silo] == [0, *paid]


def test_a_run_without_privacy_has_no_spend_and_says_so(tmp_path: Path) -> None:
    run = simulate(tmp_path, SMALL | {"trials": 1, "privacy": {"mechanism": "none"}})
    assert pq.read_table(run / "spend.parquet").num_rows == 0
    text = (run / "report.html").read_text()
    assert "No privacy: mechanism none" in text
    assert text.count("<svg") == 5  # errors twice, excess risk and gradient mapping, calibration


def test_prefixes_are_few_end_with_everything_and_count_like_the_plan() -> None:
    first = Ask(FULL, (QueryShape("gradient", 1, 1.0),))
    second = Ask(Subsample(0.5), (QueryShape("gradient", 1, 2.0),) * 2)
    plan = Plan(tuple((first, second) if r % 3 else (first,) for r in range(200)))
    rounds = list(range(0, 200, 2))
    found = prefixes(plan, rounds, 40)
    assert len(found) == 40
    assert found[-1] == (199, plan.census(rounds))
    for upto, census in found:
        assert census == plan.census([r for r in rounds if r < upto])
    assert prefixes(plan, [], 40) == []


def test_the_silos_chosen_span_the_budgets() -> None:
    budgets = [float(7 * i % 100) for i in range(100)]
    said = [
        Statement(Admitted(Terms(f"s{i}", 10, budget, 0.1, []), 1.0, 1.0, 0), 1.0, [], [])
        for i, budget in enumerate(budgets)
    ]
    picked = [s.admitted.terms.epsilon for s in chosen(said)]
    assert sorted(picked) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert fmean(picked) == 49.5
    assert chosen(said[:3]) == said[:3]
