"""Whether joining pays, what costs most, and what a baseline that diverges takes with it."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as SkLogistic
from support.scenarios import once

import fedsim
from fedsim.measure.baselines import fit
from fedsim.problems.glm import LogisticRegression
from fedsim.report.texts import metrics_table, remarks

NUMBERS = {"num_rounds": 40, "step_size": 4.0, "clip_norm": 2.0}


def run_of(data: fedsim.Arrays, **changes: Any) -> fedsim.Run:
    given = {"seed": 3, "trials": 3, "partition": "natural_id", "privacy": {"epsilon": 1000.0}} | changes
    tree = once(**given | {"algorithm": NUMBERS | changes.get("algorithm", {})})
    return fedsim.simulate(tree, data=data, progress=False)


def silos(sign: list[int], each: int, features: int = 2, seed: int = 0) -> fedsim.Arrays:
    """Silos of `each` records, in which the first feature points to class 1, or with sign -1 to class 0."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (len(sign) * each, features))
    silo = np.repeat(np.arange(len(sign)), each)
    noise = rng.normal(0, 0.4, len(x))
    return fedsim.Arrays(
        x, (np.array(sign)[silo] * x[:, 0] + noise > 0).astype(int), silo, ranges=(-1.0, 1.0)
    )


def weighted(rows: list[dict[str, Any]], name: str, counts: dict[tuple[int, str], int]) -> float:
    pairs = [(row[name], counts[row["trial"], row["silo"]]) for row in rows]
    return sum(value * count for value, count in pairs) / sum(count for _, count in pairs)


@pytest.mark.parametrize("metric", ["error", "auc"])
def test_silos_that_contradict_each_other_are_better_off_alone(metric):
    run = run_of(silos([1, 1, -1], 80), report={"metric": metric})
    own = [row for row in run.baselines.to_pylist() if row["baseline"] == "silo_alone"]
    elsewhere = [row for row in run.baselines.to_pylist() if row["baseline"] == "silo_alone_on_all"]
    joined = [row for row in run.silos.to_pylist() if row["variant"] == "private"]
    counts = {(row["trial"], row["silo"]): row["test_records"] for row in joined}
    (together,) = {row["error"] for row in own if row["silo"] is None and row["trial"] == 0}
    rows = [row for row in own if row["silo"] is not None]
    assert together == pytest.approx(weighted([row for row in rows if row["trial"] == 0], "error", counts))
    part = run.summary.joining
    assert part is not None
    assert part.alone == pytest.approx(weighted(rows, metric, counts))
    assert part.joined == pytest.approx(weighted(joined, metric, counts))
    assert all(one["error"] > each["error"] for one, each in zip(elsewhere, rows, strict=True))
    losing = part.silos[2]
    assert (losing.alone - losing.joined) * (1 if metric == "auc" else -1) > 0.4
    line = remarks(run.summary)[0]
    assert line.startswith("silos are better off alone")
    assert f"{part.alone:.3g}" in line
    assert "joining pays for" in repr(run)


def test_small_silos_that_are_alike_gain_by_joining():
    part = run_of(silos([1] * 6, 24, features=10)).summary.joining
    assert part is not None
    assert part.gain_interval90[0] > 0
    assert part.joined < part.alone


def test_a_silo_without_test_records_or_with_one_class_is_passed_over():
    rng = np.random.default_rng(0)
    silo = np.repeat(np.arange(3), [40, 40, 2])
    x = rng.uniform(-1, 1, (82, 2))
    y = np.where(silo == 1, 1, x[:, 0] + rng.normal(0, 0.4, 82) > 0).astype(int)
    run = run_of(fedsim.Arrays(x, y, silo, ranges=(-1.0, 1.0)), report={"metric": "auc"})
    counts = {row["silo"]: row["test_records"] for row in run.silos.to_pylist()}
    assert counts["2"] == 0
    assert run.summary.joining is not None
    assert [silo.name for silo in run.summary.joining.silos] == ["0"]


def test_a_number_is_compared_too():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (120, 2))
    data = fedsim.Arrays(x, x[:, 0] + rng.normal(0, 0.3, 120), np.arange(120) % 3, ranges=(-1.0, 1.0))
    run = run_of(data, problem="linear_regression", algorithm={"step_size": 0.5})
    assert run.summary.joining is not None
    assert len(run.summary.joining.silos) == 3
    assert run.summary.costs is not None


@pytest.mark.parametrize(
    ("most", "changes"),
    [
        ("noise", {"privacy": {"epsilon": 0.5}, "algorithm": {"num_rounds": 100}}),
        ("clip", {"algorithm": {"clip_norm": 0.02}}),
        ("rounds", {"algorithm": {"num_rounds": 2, "step_size": 0.3}}),
        (None, {}),
    ],
)
def test_what_costs_most_is_named(most, changes):
    run = run_of(silos([1, 1, 1], 80), report={"metric": "log_loss"}, **changes)
    part = run.summary.costs
    assert part is not None
    assert part.most == most
    assert sum(step.mean for step in part.steps) == pytest.approx(part.value - part.converged)
    names = [row[0] for row in metrics_table(run.summary).rows]
    assert names[:3] == ["this run", "clipped, without noise", "without noise and clipping"]


def test_converged_weighs_silos_as_the_run_does_and_pooled_weighs_records():
    """Where silos are of one size both are the same, and pooled alone is there."""
    names = {row["baseline"] for row in run_of(silos([1, 1], 60)).baselines}
    assert "converged" not in names
    rng = np.random.default_rng(2)
    x = np.hstack([rng.uniform(-1, 1, (200, 2)), np.ones((200, 1))])
    y = (np.where(np.arange(200) < 150, 1, -1) * x[:, 0] + rng.normal(0, 0.4, 200) > 0).astype(int)
    pairs = [
        (torch.tensor(x[part]), torch.tensor(y[part]).double()) for part in np.split(np.arange(200), [150])
    ]
    found = fit(LogisticRegression(3), pairs, [0.5, 0.5], intercept=True)
    weight = np.where(np.arange(200) < 150, 0.5 / 150, 0.5 / 50)
    theirs = SkLogistic(C=np.inf, tol=1e-10, fit_intercept=False).fit(x, y, sample_weight=200 * weight)
    assert found.w is not None
    assert found.w.numpy() == pytest.approx(theirs.coef_[0], abs=1e-3)


def test_a_baseline_that_diverges_loses_its_row_and_the_run_stays():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (120, 3))
    data = fedsim.Arrays(x, x[:, 0], np.arange(120) % 3, ranges=(-1.0, 1.0))
    run = run_of(data, problem="linear_regression", algorithm={"step_size": 30.0, "clip_norm": 0.01})
    assert run.summary.metrics.error is not None
    assert run.summary.metrics.nonprivate.error is None
    assert len(run.nonprivate_baseline) == 0
    assert run.summary.costs is None
    lines = [line for line in run.summary.warnings if "diverged" in line]
    assert len(lines) == 3  # one a trial
    assert "without noise and clipping" not in [row[0] for row in metrics_table(run.summary).rows]


def test_a_model_that_says_no_to_all_but_one_record_is_warned_of():
    rng = np.random.default_rng(0)
    y = (rng.random(600) < 0.15).astype(int)
    x = rng.uniform(-1, 1, (600, 2))
    x[y == 1, 0] += 0.3
    data = fedsim.Arrays(np.clip(x, -1, 1), y, np.arange(600) % 4, ranges=(-1.0, 1.0))
    run = run_of(data, algorithm={"num_rounds": 15, "step_size": 1.0})
    metrics, majority = run.summary.metrics, run.summary.baselines[0]
    assert metrics.sensitivity < 0.1
    (line,) = (line for line in run.summary.warnings if "no better" in line)
    assert "balanced accuracy" in line
    assert majority.name == "majority"
