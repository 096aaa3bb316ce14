"""Metrics against scikit-learn called by hand, and against values that can be counted on fingers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.preprocessing import label_binarize

from fedsim.common.errors import InputError
from fedsim.measure.metrics import Asked, calibration, values_of
from fedsim.problems.glm import HingeLoss, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.problems.network import NeuralNetwork
from fedsim.scenario.metric import BY_SKLEARN, METRICS, applicable, better, check_metric

S, Y = torch.tensor([-2.0, 1.0, 0.5, 3.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])


def values(problem: Problem, scores: Any, target: Any, **asked: Any) -> dict[str, float | None]:
    tensors = (torch.as_tensor(each, dtype=torch.float64) for each in (scores, target))
    return values_of(BY_SKLEARN, problem, *tensors, Asked(**asked))


def test_two_classes_by_hand():
    """Of four pairs of unlike records three are in order; class 1 is predicted thrice, twice rightly."""
    found = values(LogisticRegression(1), S, Y, classes=2)
    p = 1 / (1 + np.exp(-S.numpy()))
    assert found["auc"] == 0.75
    assert found["average_precision"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert (found["sensitivity"], found["specificity"], found["balanced_accuracy"]) == (1.0, 0.5, 0.75)
    assert found["brier"] == pytest.approx(np.mean((p - Y.numpy()) ** 2))
    losses = LogisticRegression(1).losses(S, Y)
    assert found["log_loss"] == pytest.approx(float(losses.mean()))
    assert "rmse" not in found


def test_a_threshold_moves_sensitivity_and_specificity_alone():
    usual, higher = (values(LogisticRegression(1), S, Y, classes=2, threshold=t) for t in (0.5, 0.75))
    assert (higher["sensitivity"], higher["specificity"]) == (
        0.5,
        1.0,
    )  # sigmoid(1) = 0.731, sigmoid(0.5) = 0.622
    assert {name for name in usual if usual[name] != higher[name]} <= {
        "sensitivity",
        "specificity",
        "balanced_accuracy",
    }


@pytest.mark.parametrize("classes", [2, 4])
def test_a_softmax_is_what_scikit_learn_makes_of_its_probabilities(classes):
    rng = np.random.default_rng(classes)
    target = rng.integers(0, classes, 200)
    scores = rng.normal(size=(200, classes)) + 2 * np.eye(classes)[target]
    if classes == 2:
        scores = scores.round()  # some differences are equal
    rank = scores[:, 1] - scores[:, 0]
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = values(SoftmaxRegression(1, classes), scores, target, classes=classes)
    hard = p.argmax(1)
    if classes == 2:
        expected = {
            "auc": metrics.roc_auc_score(target, rank),
            "average_precision": metrics.average_precision_score(target, rank),
            "sensitivity": metrics.recall_score(target, hard),
            "specificity": metrics.recall_score(target, hard, pos_label=0),
            "brier": metrics.brier_score_loss(target, p[:, 1]),
        }
    else:
        one_hot = label_binarize(target, classes=range(classes))
        tables = metrics.multilabel_confusion_matrix(target, hard)
        expected = {
            "auc": metrics.roc_auc_score(target, p, multi_class="ovr", average="macro"),
            "average_precision": metrics.average_precision_score(one_hot, p, average="macro"),
            "sensitivity": metrics.recall_score(target, hard, average="macro"),
            "specificity": np.mean(tables[:, 0, 0] / tables[:, 0].sum(1)),
            "brier": np.mean(((p - one_hot) ** 2).sum(1)),
        }
    expected["log_loss"] = metrics.log_loss(target, p)
    expected["balanced_accuracy"] = metrics.balanced_accuracy_score(target, hard)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_number_is_measured_in_its_own_units():
    found = values(
        LinearRegression(1), [0.0, 0.5], [0.5, 0.5 + 1e-9], classes=0, units=lambda scaled: 10 * scaled + 3
    )
    assert found["mae"] == pytest.approx(2.5)
    assert found["rmse"] == pytest.approx(math.sqrt(12.5))
    assert values(LinearRegression(1), [1.0, 2.0, 4.0], [1.0, 3.0, 5.0], classes=0)["r2"] == pytest.approx(
        0.75
    )
    assert values(LinearRegression(1), [1.0], [2.0], classes=0) == {"rmse": 1.0, "mae": 1.0, "r2": None}


def test_a_hinge_loss_has_ranks_and_no_probabilities():
    found = values(HingeLoss(1), S, Y, classes=2)
    assert (found["auc"], found["sensitivity"], found["specificity"]) == (0.75, 1.0, 0.5)
    assert found["log_loss"] is None
    assert found["brier"] is None


def test_what_one_class_cannot_say_is_none():
    found = values(LogisticRegression(1), S, torch.ones(4), classes=2)
    undecided = ("auc", "average_precision", "balanced_accuracy", "specificity")
    assert [found[name] for name in undecided] == [None] * 4
    assert found["sensitivity"] == 0.75
    assert found["log_loss"] is not None


def test_classes_without_a_test_record_are_left_out_of_macro_values():
    scores = np.array([[2.0, 0.0, 9.0], [0.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
    found = values(SoftmaxRegression(1, 3), scores, [0, 1, 0], classes=3)
    assert found["sensitivity"] == pytest.approx((0.5 + 1) / 2)
    assert found["auc"] == pytest.approx(((1 + 0) / 2 + (1 + 1) / 2) / 2)


def test_scores_that_are_not_finite_have_no_metric():
    found = values(LogisticRegression(1), [math.nan, 1.0], [0, 1], classes=2)
    assert found
    assert all(value is not None and math.isnan(value) for value in found.values())
    assert values(LogisticRegression(1), [], [], classes=2)["auc"] is None


def test_calibration_is_scikit_learns_and_counts_records():
    rng = np.random.default_rng(3)
    scores, target = torch.tensor(rng.normal(size=300)), torch.tensor(rng.integers(0, 2, 300)).double()
    bins = calibration(LogisticRegression(1), scores, target, Asked(2))
    p = scores.sigmoid().numpy()
    observed, predicted = calibration_curve(target.numpy(), p, n_bins=10)
    assert np.allclose([(b.observed, b.predicted) for b in bins], np.stack([observed, predicted], axis=1))
    assert [b.records for b in bins] == [
        int(((p > b.bin / 10) & (p <= (b.bin + 1) / 10)).sum()) for b in bins
    ]
    assert calibration(HingeLoss(1), scores, target, Asked(2)) == []
    assert calibration(LogisticRegression(1), scores, torch.ones(300), Asked(2))[0].observed == 1.0


def test_of_several_classes_the_predicted_ones_probability_is_calibrated():
    scores = torch.tensor([[5.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.1, 0.0]])
    low, high = calibration(SoftmaxRegression(1, 3), scores, torch.tensor([0.0, 1.0, 1.0, 1.0]), Asked(3))
    assert (low.bin, low.records, low.observed) == (3, 1, 1.0)
    assert (high.bin, high.records) == (9, 3)
    assert high.observed == pytest.approx(2 / 3)


def test_a_problem_says_which_metrics_it_has():
    assert applicable(LinearRegression(1), 0) == ("error", "loss", "rmse", "mae", "r2")
    assert {"log_loss", "brier"} == set(applicable(LogisticRegression(1), 2)) - set(
        applicable(HingeLoss(1), 2)
    )
    assert "brier" in applicable(NeuralNetwork(3, 2), 2)
    assert "auc" not in applicable(NeuralNetwork(3, 1), 0)


@pytest.mark.parametrize(
    ("metric", "threshold", "problem", "classes", "said"),
    [
        ("auc", 0.5, LinearRegression(1), 0, "the target is a number; use error, loss, rmse"),
        ("rmse", 0.5, LogisticRegression(1), 2, "the target is 2 classes; use error"),
        ("brier", 0.5, HingeLoss(1), 2, "HingeLoss gives no probabilities; use error"),
        ("error", 0.3, HingeLoss(1), 2, "threshold: 0.3: 0.5"),
        ("error", 0.3, SoftmaxRegression(1, 3), 3, "two classes"),
    ],
)
def test_a_metric_that_a_problem_lacks_is_refused(metric, threshold, problem, classes, said):
    with pytest.raises(InputError, match=said):
        check_metric(metric, threshold, problem, classes)
    check_metric("error", 0.5, problem, classes)


def test_the_direction_of_every_metric():
    assert better("auc", 0.8, 0.7)
    assert better("error", 0.1, 0.2)
    assert not better("r2", 0.5, 0.5)
    assert {name for name, metric in METRICS.items() if metric.higher} == {
        "auc", "average_precision", "balanced_accuracy", "sensitivity", "specificity", "r2"
    }  # fmt: skip
