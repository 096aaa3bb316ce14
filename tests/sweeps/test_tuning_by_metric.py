"""Private tuning by other metrics than the share of mistakes."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit
from support.scenarios import BASE, FakeRunner, invoke, result, write

import fedsim
from fedsim.report.record import Record
from fedsim.simulation.sweeps.cell import Cell
from fedsim.simulation.sweeps.engine import Engine
from fedsim.simulation.sweeps.job import job_of
from fedsim.simulation.sweeps.run_cells import run_batch

STEPS = [0.05, 1.0]
TREE: dict[str, Any] = BASE | {
    "trials": 1,
    "data": {"name": "synthetic", "rows": 300, "features": 3},
    "report": {"nonprivate_baseline": False, "baselines": False},
    "sweep": {"grid": {"privacy.epsilon": [6]}},
}


def tree(**private: Any) -> dict[str, Any]:
    """A sweep that is tuned with these fields of `private`."""
    made = copy.deepcopy(TREE)
    tune = {"grid": {"algorithm.step_size": STEPS}, "repetitions": 2, "private": {"fraction": 0.4} | private}
    made["sweep"]["tune"] = tune
    return made


@pytest.mark.parametrize(
    ("metric", "best", "said"),
    [
        ("error", 0.05, "number of misclassified units"),
        ("log_loss", 0.05, "sum of log losses"),
        ("brier", 0.05, "sum of Brier scores"),
        ("auc", 1.0, "histogram of classes and predicted probabilities"),
    ],
)
def test_the_metric_chooses_in_its_direction_and_is_named(
    metric: str, best: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Engine(job_of(tree(metric=metric)), Record())
    runner = FakeRunner(lambda cell: result(cell.scenario["algorithm"]["step_size"] / 2))
    results = desk.run(runner, lambda event: None)
    assert STEPS[results.chosen[0] or 0] == best
    assert all(cell.grant.score.metric == metric for cell in runner.cells if cell.scored)
    invoke("sweep", write(tmp_path, tree(metric=metric)), "--out", tmp_path / "out", code=0)
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (found["tuning"]["scored_by"], found["tuning"]["weighing"]) == (metric, "records")
    criterion = "private_error" if metric == "error" else "private_metric"
    assert found["tuning"]["criterion"] == criterion
    assert all(isinstance(one[criterion], float) for one in found["tuning"]["candidates"])
    assert said in found["privacy"]["tuning"]["mechanism"]
    page = (tmp_path / "out" / "report.html").read_text()
    words = {"error": "noisy share of mistakes", "auc": "noisy ROC AUC", "log_loss": "noisy log loss"}
    assert words.get(metric, "noisy Brier score") in page
    assert "over 2 runs; weighing: records." in page


def test_the_price_is_the_same_and_no_two_metrics_share_noise() -> None:
    def scored(**private: Any) -> tuple[list[Cell], list[Any]]:
        desk = Engine(job_of(tree(**private)), Record())
        runner = FakeRunner(lambda _: result())
        desk.run(runner, lambda event: None)
        scores = [silo["scores"] for silo in desk._job.selections[0].parts.silos]
        terms = [(each.noise_multiplier, each.epsilon_guaranteed) for each in scores]
        return [cell for cell in runner.cells if cell.scored], terms

    cells, prices = zip(*(scored(metric=m) for m in ("error", "log_loss", "brier", "auc")), strict=True)
    assert all(price == prices[0] for price in prices)
    more = [scored(metric="auc", bins=20)[0], scored(metric="log_loss", bound=0.1)[0]]
    assert len({cell[0].selection for cell in [*cells, *more]}) == 6
    values = [[one.error for one in run_batch(own)] for own in cells]
    inside = [value for own in values for value in own if value not in (0.0, 1.0)]  # an AUC is cut to [0, 1]
    assert len(set(inside)) == len(inside) >= 12


def risk_table(records: int = 4000, features: int = 10, silos: int = 4) -> fedsim.Arrays:
    """A cohort study's shape: correlated risk factors, 15 % of people with the event, some hospitals."""
    rng = np.random.default_rng(0)
    x = np.clip(0.5 * rng.standard_normal((records, 1)) + rng.standard_normal((records, features)), -3, 3)
    score = x @ np.array([0.8, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0, 0])
    offset = brentq(lambda at: expit(score + at).mean() - 0.15, -20, 20)
    event = (rng.random(records) < expit(score + offset)).astype(int)
    return fedsim.Arrays(x, event, rng.integers(silos, size=records), ranges=(-3.0, 3.0))


@pytest.mark.slow
def test_private_tuning_by_auc_is_near_tuning_without_noise() -> None:
    """Of 20 selections at epsilon 3, mean test AUC: at most 0.02 below that of choosing by test records."""
    scenario = {
        "name": "risk",
        "seed": 0,
        "partition": "natural_id",
        "problem": "logistic_regression",
        "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 30, "step_size": 1.0, "clip_norm": 1.0},
        "privacy": {"epsilon": 3},
        "runtime": "inprocess",
        "report": {"metric": "auc", "baselines": False, "nonprivate_baseline": False},
    }
    found, data = {}, risk_table()
    for name, tune in {
        "private": {"private": {"fraction": 0.3, "metric": "auc"}},
        "open": {"criterion": "final_metric"},
    }.items():
        chosen = {"grid": {"algorithm.step_size": [0.002, 0.02, 0.2, 2, 20, 200]}, "repetitions": 1, **tune}
        made = {**scenario, "sweep": {"grid": {"seed": list(range(20))}, "tune": chosen}}
        rows = fedsim.sweep(made, data=data).summary.combinations
        found[name] = np.array([getattr(row.auc, "mean", row.auc) for row in rows])
    assert found["open"].mean() > 0.8
    assert found["private"].mean() >= found["open"].mean() - 0.02
