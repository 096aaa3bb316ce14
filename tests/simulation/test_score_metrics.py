"""Scores other than mistakes: what a record moves them by, their noise, and the metric that follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn
from torch import Tensor

from fedsim.problems.glm import LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.protocol.limits import Limits
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import Person
from fedsim.simulation.selection import Score, Scorer
from silos.vault.entropy import SeededEntropy
from silos.vault.owners import Owners

Records = tuple[np.ndarray, np.ndarray]
SIZES, NAMES = (40, 25), ("a", "b")
W = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
METRICS = ["error", "log_loss", "brier", "auc"]


def silos(classes: int = 2) -> list[Records]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((n, 3)), rng.integers(0, classes, n)) for n in SIZES]


def answer(
    data: list[Records],
    score: Score,
    noise: tuple[float, float] = (0.0, 0.0),
    trial: int = 0,
    problem: Problem | None = None,
    w: Tensor = W,
) -> np.ndarray:
    entropy = SeededEntropy(0, trial, NAMES, ("run",) * 2)
    kind = problem or LogisticRegression(3)
    return Scorer(data, kind, noise, entropy, Limits(), torch.float64, score).answer(w)


@pytest.mark.parametrize("metric", METRICS)
def test_a_record_moves_its_silo_s_total_by_the_spread_and_no_other_silo_s(metric: str) -> None:
    """Brute force: the spread is attained, so that a smaller one would be wrong."""
    score = Score(metric, bins=4, bound=0.05)
    found = []
    for features in ([1e300, -1e300, 1e300], [math.nan] * 3, [0.0] * 3, [-60.0, 0.0, 0.0], [60.0, 0.0, 0.0]):
        for label in (0, 1):
            data = silos()
            data[0][0][7], data[0][1][7] = features, label
            found.append(answer(data, score))
    moves = [np.linalg.norm(a[0] - b[0]) * SIZES[0] for a in found for b in found]
    assert max(moves) == pytest.approx(statistic(score.shape.statistic).spread_of(()), rel=1e-9)
    assert all(np.array_equal(one[1], found[0][1]) for one in found)


@pytest.mark.parametrize("metric", METRICS)
def test_the_noise_is_z_spreads_wide(metric: str) -> None:
    score, z, trials = Score(metric, bins=2), (3.0, 50.0), 400
    spread = math.sqrt(2) if metric == "auc" else 1.0
    exact = answer(silos(), score)
    drawn = np.array([answer(silos(), score, z, trial) - exact for trial in range(trials)])
    for i, n in enumerate(SIZES):
        standard = (drawn[:, i] * n / z[i] / spread).reshape(trials, -1)
        bounds = stats.chi2.ppf([1e-5, 1 - 1e-5], standard.size)
        for wrong in (1.0, 1 / math.sqrt(2), math.sqrt(2)):
            assert (bounds[0] < float(np.sum((standard * wrong) ** 2)) < bounds[1]) == (wrong == 1.0)
        assert standard.shape[1] == (4 if metric == "auc" else 1)
        assert stats.kstest(standard[:, 0], "norm").pvalue > 1e-4
    each = drawn.reshape(trials, len(SIZES), -1)[:, :, 0]
    assert abs(np.corrcoef(each.T)[0, 1]) < 0.25
    if metric == "auc":  # each cell's noise is its own
        assert np.abs(np.corrcoef(drawn[:, 0].T) - np.eye(4)).max() < 0.25


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_without_noise_it_is_the_metric_of_all_silos_records(metric: str, classes: int) -> None:
    if metric == "auc" and classes == 3:
        return
    score = Score(metric, bins=100_000, bound=1e-6)
    w = torch.as_tensor(np.random.default_rng(3).standard_normal(3 * classes))
    problem = SoftmaxRegression(3, classes)
    data = silos(classes)
    found = answer(data, score, problem=problem, w=w)
    value = score.value(np.dot(np.array(SIZES) / sum(SIZES), found), classes)
    x, y = np.concatenate([each for each, _ in data]), np.concatenate([each for _, each in data])
    p = problem.scores(torch.as_tensor(x), w).softmax(-1).numpy()
    labels = range(classes)
    exact = {
        "error": lambda: np.mean(p.argmax(1) != y),
        "log_loss": lambda: sklearn.log_loss(y, p, labels=labels),
        "brier": lambda: sklearn.brier_score_loss(y, p, labels=labels),
        "auc": lambda: sklearn.roc_auc_score(y, p[:, 1]),
    }
    assert value == pytest.approx(float(exact[metric]()), abs=2e-3 if metric == "auc" else 1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_a_person_weighs_as_one_record_does_whatever_records_it_has(metric: str) -> None:
    score, data = Score(metric, bins=4, bound=0.05), silos()
    codes = [np.arange(n) for n in SIZES]
    entropy = SeededEntropy(0, 0, NAMES, ("run",) * 2)

    def by_person(copies: int) -> np.ndarray:
        x, y = data[0]
        tail = [7] * (copies - 1)  # the records of person 7 are alike
        rows = (np.vstack([x, x[tail]]), np.append(y, y[tail])), data[1]
        persons = Owners(Person(), [np.append(codes[0], tail), codes[1]])
        desk = Scorer(rows, LogisticRegression(3), (0, 0), entropy, Limits(), torch.float64, score, persons)
        return desk.answer(W)

    assert by_person(1) == pytest.approx(answer(data, score), abs=1e-12)
    assert by_person(9) == pytest.approx(answer(data, score), abs=1e-12)
