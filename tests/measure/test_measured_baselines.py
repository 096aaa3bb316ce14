"""Baselines against scikit-learn on its own data, and against what can be said without a solver."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression as SkLinear
from sklearn.linear_model import LogisticRegression as SkLogistic
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import log_loss, mean_absolute_error, roc_auc_score
from support.scenarios import once

import fedsim
from fedsim.data.federation import SiloSplit
from fedsim.measure import baselines as measured
from fedsim.measure.baselines import fit
from fedsim.problems.composite import Composite
from fedsim.problems.glm import (
    AbsoluteError,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Mlp
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.rows import Rows
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import read

FEW = [0, 1, 4, 5]
"""Features of breast cancer that do not separate its classes."""


def records(load: Any, columns: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Standardised features with a constant one, and targets, which a number has standardised too."""
    x, y = load(return_X_y=True)
    x = x if columns is None else x[:, columns]
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
    return np.hstack([x, np.ones((len(x), 1))]), y if y.dtype.kind == "i" else (y - y.mean()) / y.std()


def fitted(problem: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, str]:
    found = fit(problem, [(torch.tensor(x), torch.tensor(y).double())], [1.0], intercept=True)
    assert found.w is not None, found.method
    return problem.scores(torch.tensor(x), found.w).numpy(), found.method


@pytest.mark.parametrize(
    ("columns", "penalty", "said"),
    [(FEW, {"C": np.inf}, r"converged$"), (None, {}, ".*scikit-learn's default")],
    ids=["without a penalty", "separable classes"],
)
def test_logistic_regression_is_scikit_learns(columns, penalty, said):
    x, y = records(load_breast_cancer, columns)
    scores, method = fitted(LogisticRegression(x.shape[1]), x, y)
    theirs = SkLogistic(**penalty, tol=1e-10, max_iter=10_000).fit(x[:, :-1], y)
    assert np.abs(scores - theirs.decision_function(x[:, :-1])).max() < 1e-3
    assert re.match(said, method)


def test_softmax_is_scikit_learns():
    x, y = records(load_wine, [1, 2, 3])
    scores, _ = fitted(SoftmaxRegression(x.shape[1], 3), x, y)
    theirs = SkLogistic(C=np.inf, tol=1e-8, max_iter=20_000).fit(x[:, :-1], y).predict_proba(x[:, :-1])
    ours = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert abs(log_loss(y, ours) - log_loss(y, theirs)) < 1e-3
    assert np.abs(ours - theirs).max() < 5e-3


def test_linear_regression_is_scikit_learns():
    x, y = records(load_diabetes)
    scores, _ = fitted(LinearRegression(x.shape[1]), x, y)
    assert np.abs(scores - SkLinear().fit(x[:, :-1], y).predict(x[:, :-1])).max() < 1e-9


def test_a_kinked_loss_comes_as_close_as_it_says():
    x, y = (each[:150] for each in records(load_diabetes))
    scores, method = fitted(AbsoluteError(x.shape[1]), x, y)
    theirs = QuantileRegressor(alpha=0).fit(x[:, :-1], y).predict(x[:, :-1])
    assert mean_absolute_error(y, scores) - mean_absolute_error(y, theirs) < 1e-3 + 1e-2 / len(y)
    assert method.startswith("L-BFGS after")


def test_fewer_records_than_features_are_as_good_as_ridge():
    x, y = records(load_diabetes)
    scores, method = fitted(LinearRegression(x.shape[1]), x[:8], y[:8])
    assert np.abs(scores - y[:8]).max() > 0.1, "an interpolation"
    assert "scikit-learn's default" in method


def test_a_silo_of_one_class_predicts_it():
    x, y = records(load_breast_cancer)
    scores, _ = fitted(LogisticRegression(x.shape[1]), x[y == 1][:50], y[y == 1][:50])
    assert (scores > 0).all()
    assert np.isfinite(scores).all()


def test_a_regulariser_and_a_constraint_are_the_scenarios():
    x, y = records(load_breast_cancer)
    ball = LogisticRegression(x.shape[1], 1, Composite(constraint=L2Ball(0.5)))
    found = fit(ball, [(torch.tensor(x), torch.tensor(y).double())], [1.0], intercept=True)
    assert found.w is not None
    assert float(found.w.norm()) == pytest.approx(0.5)
    l2 = LogisticRegression(x.shape[1], 1, Composite(l2=0.1))
    scores, method = fitted(l2, x, y)
    theirs = SkLogistic(C=1 / (0.1 * len(y)), tol=1e-10, fit_intercept=False, max_iter=1000).fit(x, y)
    assert np.abs(scores - theirs.decision_function(x)).max() < 1e-3
    assert method == "converged"


def test_a_network_ends_where_its_loss_is_flat(monkeypatch):
    x, y = records(load_breast_cancer, FEW)
    x, y = x[:60, :], y[:60]
    network = NeuralNetwork(5, 2, Composite(l2=0.05), Mlp(hidden=()))
    found = fit(network, [(torch.tensor(x), torch.tensor(y).double())], [1.0], intercept=True)
    assert found.w is not None
    assert "a local search" in found.method
    w = found.w.requires_grad_()
    scores = network.slope_scores(torch.tensor(x), w)
    loss = network.losses(scores, torch.tensor(y).double()).mean() + network.composite.value(w)
    (slope,) = torch.autograd.grad(loss, w)
    assert float(slope.abs().max()) < 1e-4
    monkeypatch.setattr(measured, "_WORK", 10)
    assert fit(network, [(torch.tensor(x), torch.tensor(y).double())], [1.0], True).w is None


def test_what_no_solver_of_ours_minimises_says_so():
    x, y = records(load_breast_cancer, FEW)
    problem = HingeLoss(5, 1, Composite(l1=0.1))
    found = fit(problem, [(torch.tensor(x), torch.tensor(y).double())], [1.0], True)
    assert found.w is None
    assert found.method.startswith("not fitted")


def imbalanced(n: int = 1000) -> fedsim.Arrays:
    """15 % positives that features hardly tell apart: no threshold at 1/2 finds them."""
    rng = np.random.default_rng(0)
    y = (rng.random(n) < 0.15).astype(int)
    x = rng.normal(size=(n, 3)) + 0.4 * y[:, None]
    return fedsim.Arrays(features=x / 4, target=y, silo=np.arange(n) % 4)


NUMBERS: dict[str, Any] = {"algorithm": {"step_size": 1.0}, "privacy": {"epsilon": 8.0}}


def simulated(**report: Any) -> fedsim.Run:
    tree = once(partition="natural_id", report=report, **NUMBERS)
    return fedsim.simulate(tree, data=imbalanced(), progress=False)


def test_where_few_are_positive_the_error_says_nothing_and_the_auc_does():
    run = simulated(metric="auc")
    majority, *alone, together, pooled, clipped = run.baselines
    assert majority["error"] == run.summary.metrics.error == pytest.approx(0.15, abs=0.03)
    assert majority["auc"] == 0.5
    assert pooled["auc"] > 0.6
    assert pooled["error"] == pytest.approx(0.15, abs=0.02)
    assert [row["baseline"] for row in alone] == ["silo_alone_on_all", "silo_alone"] * 4
    assert {row["silo"] for row in alone} == set(run.silos["silo"])
    assert (together["baseline"], together["silo"], clipped["baseline"]) == ("silo_alone", None, "clipped")
    (line,) = (line for line in run.summary.warnings if "no better" in line)
    assert "test error" in line
    assert "majority class" in line
    assert run.summary.metrics.chosen is not None
    assert run.summary.metrics.chosen.mean == run.summary.metrics.auc
    assert all(row["auc"] is not None for row in run.metrics)
    assert all(row["auc"] is not None and row["brier"] is None for row in run.silos)


def test_before_the_last_round_only_the_chosen_metric_is_measured():
    rows = simulated(nonprivate_baseline=False).metrics.to_pylist()
    assert [row["auc"] is None for row in rows] == [True] * (len(rows) - 1) + [False]


def test_baselines_can_be_left_out():
    run = simulated(baselines=False)
    assert len(run.baselines) == 0
    assert run.summary.baselines == []
    assert not any("no better" in line for line in run.summary.warnings)


def test_a_runs_baselines_are_scikit_learns_on_the_same_records():
    tree = once(data={"name": "breast_cancer"}, **NUMBERS)
    prior, *_, pooled, _ = fedsim.simulate(tree, progress=False).baselines.to_pylist()
    silos = read(resolve(parse(tree)), 0).silos
    train, test = silos.train.rows, silos.test.rows
    x, u, y, v = train.features[:, :-1], test.features[:, :-1], train.target, test.target
    theirs = SkLogistic(tol=1e-10, max_iter=10_000).fit(x, y)
    assert pooled["error"] == pytest.approx(1 - theirs.score(u, v), abs=1e-3)
    assert pooled["auc"] == pytest.approx(roc_auc_score(v, theirs.decision_function(u)), abs=1e-3)
    assert pooled["log_loss"] == pytest.approx(log_loss(v, theirs.predict_proba(u)), abs=1e-3)
    shares = DummyClassifier(strategy="prior").fit(x, y)
    assert prior["log_loss"] == pytest.approx(log_loss(v, shares.predict_proba(u)))
    assert (prior["error"], prior["auc"]) == (pytest.approx(1 - shares.score(u, v)), 0.5)


def test_of_many_silos_an_even_sample_is_fitted():
    rows = [Rows(np.zeros((n, 1)), np.zeros(n)) for n in range(100, 0, -1)]
    silos = [SiloSplit(str(own.n), own, own) for own in rows]
    chosen = [len(silo.train.target) for silo in measured._some(silos)]
    assert len(chosen) == measured.MOST_SILOS
    assert chosen[0] == 1
    assert chosen[-1] == 100
    assert max(np.diff(chosen)) - min(np.diff(chosen)) <= 1
