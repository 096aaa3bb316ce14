"""What one record says of a model: right, bounded, and its own alone."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from support.network_modules import Tokens
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.problems.glm import HingeLoss, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem, gives_probabilities, probabilities
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from silos.vault.scores import bounded_log_loss, log_loss_range, score_bins, squared_distance

BINS, BOUND = 4, 0.05
N = 30
W = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)


def records(seed: int = 0, classes: int = 2) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((N, 3)), rng.integers(0, classes, N)
    return torch.as_tensor(x), torch.as_tensor(y)


def histogram(problem: Problem, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return torch.bincount(score_bins(problem, x, y, w, BINS), minlength=2 * BINS).double()


def log_loss(problem: Problem, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return bounded_log_loss(problem, x, y, w, BOUND).sum()


def distance(problem: Problem, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return squared_distance(problem, x, y, w).sum()


STATISTICS = {"histogram": (histogram, math.sqrt(2)), "log loss": (log_loss, 1.0), "Brier": (distance, 1.0)}

EXTREMES = [[1e300, -1e300, 1e300], [-1e300, 0.0, 0.0], [math.inf] * 3, [math.nan] * 3, [0.0] * 3]
LABELS = [0.0, 1.0, math.nan, 7.0, 0.5, -1.0]


class Mixing(LogisticRegression):
    """Predicts for a record what its neighbour's score says."""

    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(scores.roll(1))


class Twice(LogisticRegression):
    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(2 * scores)


class Peeking(LogisticRegression):
    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(scores if bool((scores > 0).any()) else -scores)


class Wide(LogisticRegression):
    def probabilities(self, scores: Tensor) -> Tensor:
        return scores


def problems() -> dict[str, tuple[Problem, Tensor]]:
    wide = torch.stack([-W / 2, W / 2], dim=1).reshape(-1)
    network = NeuralNetwork(3, 2)
    return {
        "logistic": (LogisticRegression(3), W),
        "softmax": (SoftmaxRegression(3, 2), wide),
        "network": (network, 20 * network.start(0).double()),
        "of others": (Twice(3), W),
        "that mixes records": (Mixing(3), W),
    }


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("problem", problems())
def test_a_record_moves_a_sum_by_its_spread_at_most_and_some_record_does(
    statistic: str, problem: str
) -> None:
    """Brute force over labels, extreme records and what can no longer be computed; a smaller spread fails."""
    (term, spread), (kind, w) = STATISTICS[statistic], problems()[problem]
    x, y = records()
    sums = []
    for features in [*EXTREMES, [50.0, 0.0, 0.0], [-50.0, 0.0, 0.0], [0.0, 50.0, -9.0], [0.0, -50.0, 9.0]]:
        for label in LABELS:
            changed_x, changed_y = x.clone(), y.double()
            changed_x[4], changed_y[4] = torch.tensor(features), label
            sums.append(term(kind, changed_x, changed_y, w))
    moves = [float((a - b).norm()) for a in sums for b in sums]
    attained = max(moves) / spread
    assert attained <= 1 + 1e-9
    assert attained > (1 - 1e-9 if problem != "network" else 0.9)
    if statistic == "histogram":
        cells = torch.stack(sums)
        assert set(cells.sum(dim=1).tolist()) == {float(N)}  # a record counts exactly once
        assert float((cells[:, None] - cells[None]).abs().max()) == 1
        assert int((cells[:, None] != cells[None]).sum(-1).max()) == 2


def test_a_score_that_is_no_number_is_the_worst_of_its_class() -> None:
    x, y = records()
    x[:2], y[0], y[1] = math.nan, 0, 1
    cells = score_bins(LogisticRegression(3), x, y, W, BINS)
    assert cells[:2].tolist() == [BINS - 1, BINS]
    assert bounded_log_loss(LogisticRegression(3), x, y, W, BOUND)[:2].tolist() == [1, 1]
    assert squared_distance(LogisticRegression(3), x, y, W)[:2].tolist() == [1, 1]


def test_a_record_that_the_model_cannot_be_applied_to_decides_nothing_else() -> None:
    problem = NeuralNetwork(4, 3, model=Imported(f"support.network_modules:{Tokens.__name__}"))
    rng = np.random.default_rng(0)
    x, w = torch.as_tensor(rng.integers(0, 8, (N, 4))).double(), problem.start(0).double()
    y = torch.as_tensor(rng.integers(0, 3, N))
    before = bounded_log_loss(problem, x, y, w, BOUND)
    x[3] = 1e6
    after = bounded_log_loss(problem, x, y, w, BOUND)
    assert float(after[3]) == 1
    assert torch.equal(after[4:], before[4:])


@pytest.mark.parametrize("bins", [2, 10, 20])
def test_cells_are_class_and_bin(bins: int) -> None:
    x, y = records()
    p = expit((x @ W).numpy())
    expected = y.numpy() * bins + np.ceil(p * bins).astype(int) - 1
    assert score_bins(LogisticRegression(3), x, y, W, bins).tolist() == expected.tolist()
    assert ((expected % bins >= bins / 2) == (p > 0.5)).all()
    ends = torch.tensor([[0.0, 0, 0], [1e3, 0, 0], [-1e3, 0, 0]], dtype=torch.float64)
    found = score_bins(LogisticRegression(3), ends, torch.zeros(3), W, bins)
    assert found.tolist() == [bins // 2 - 1, bins - 1, 0]  # 0.5 is not above the threshold


@pytest.mark.parametrize("classes", [2, 3])
def test_shares_are_the_metrics_of_scikit_learn(classes: int) -> None:
    from sklearn import metrics

    x, y = records(classes=classes)
    problem = SoftmaxRegression(3, classes)
    w = torch.as_tensor(np.random.default_rng(1).standard_normal(3 * classes))
    p = probabilities(problem, problem.scores(x, w)).numpy()
    least, most = log_loss_range(1e-9)
    share = float(bounded_log_loss(problem, x, y, w, 1e-9).mean())
    exact = metrics.log_loss(y, p, labels=range(classes))
    assert least + share * (most - least) == pytest.approx(exact, rel=1e-12)
    brier = float(squared_distance(problem, x, y, w).mean()) * (1 if classes == 2 else 2)
    assert brier == pytest.approx(metrics.brier_score_loss(y, p, labels=range(classes)), rel=1e-12)


def test_probabilities_of_others_are_made_of_one_record_each() -> None:
    x, y = records()
    assert torch.equal(score_bins(Mixing(3), x, y, W, BINS), score_bins(LogisticRegression(3), x, y, W, BINS))
    assert torch.equal(
        score_bins(Twice(3), x, y, W, BINS), score_bins(LogisticRegression(3), x, y, 2 * W, BINS)
    )


def test_what_gives_no_probabilities_of_two_classes_is_refused() -> None:
    x, y = records()
    assert not gives_probabilities(HingeLoss(3))
    assert probabilities(HingeLoss(3), x @ W) is None
    with pytest.raises(ValueError, match="HingeLoss gives no probabilities"):
        score_bins(HingeLoss(3), x, y, W, BINS)
    with pytest.raises(ValueError, match="two classes, not 3"):
        score_bins(SoftmaxRegression(3, 3), x, y, torch.zeros(9, dtype=torch.float64), BINS)
    for kind, words in ((Peeking, "operations of torch"), (Wide, r"shape \(1, classes\)")):
        with pytest.raises(InputError, match=words):
            score_bins(kind(3), x, y, W, BINS)
