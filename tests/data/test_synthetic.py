"""The stated optimum is the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedsim.data.builtin import Synthetic
from fedsim.data.federation import Federation, load
from fedsim.data.partition import IidPartition

ROWS = 200_000


def records(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    silo = federation.silos[0]
    return silo.train_features, silo.train_target


def logistic(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    sign = 2 * y - 1
    margin = sign * (x @ w)
    return float(np.logaddexp(0, -margin).mean()), -(x.T @ (sign / (1 + np.exp(margin)))) / len(y)


def squared(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    residual = x @ w - y
    return float((residual**2).mean()), 2 * x.T @ residual / len(y)


def cross_entropy(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """The last class is held at zero, as the stated normalisation says."""
    weights = w.reshape(x.shape[1], -1).copy()
    weights[:, -1] = 0
    scores = x @ weights
    log_likely = log_softmax(scores, axis=1)
    gradient = x.T @ (np.exp(log_likely) - np.eye(weights.shape[1])[y]) / len(y)
    gradient[:, -1] = 0
    return float(-log_likely[np.arange(len(y)), y].mean()), gradient.reshape(-1)


LOSSES = {"logistic": logistic, "linear": squared, "softmax": cross_entropy}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("link", ["logistic", "linear", "softmax"])
def test_the_optimum_is_the_minimiser(link: str, intercept: bool) -> None:
    """On 190,000 records the minimiser is within 0.1 of w*: more than 6 standard errors per coordinate.

    At most 12 coordinates with a standard error below 0.016 each; the false alarm rate is below 1e-6.
    """
    data = Synthetic(link=link, rows=ROWS, features=3, noise=0.5, intercept=intercept, test_fraction=0.05)
    federation = load(data, IidPartition(num_partitions=1), 0, 0)
    x, y = records(federation)
    start = np.zeros(len(federation.optimum))
    found = minimize(LOSSES[link], start, (x, y), jac=True, method="BFGS", options={"gtol": 1e-4})
    assert found.x == pytest.approx(federation.optimum, abs=0.1)
    assert np.linalg.norm(federation.optimum) > 1


def test_softmax_fixes_the_last_class_at_zero() -> None:
    data = Synthetic(link="softmax", features=4, classes=3)
    optimum = load(data, IidPartition(num_partitions=2), 0, 0).optimum
    assert optimum.shape == (15,)
    assert np.all(optimum.reshape(5, 3)[:, 2] == 0)
    assert np.all(optimum.reshape(5, 3)[:, :2] != 0)


def test_the_data_set_has_its_own_seed() -> None:
    first, same, other = (
        load(Synthetic(seed=own), IidPartition(num_partitions=2), seed, 0)
        for own, seed in ((0, 0), (0, 9), (1, 0))
    )
    assert np.array_equal(first.optimum, same.optimum)
    assert not np.array_equal(first.optimum, other.optimum)


def test_more_rows_keep_the_optimum() -> None:
    few, many = (load(Synthetic(rows=n), IidPartition(num_partitions=2), 0, 0).optimum for n in (10, 1000))
    assert np.array_equal(few, many)


@pytest.mark.parametrize("options", [{"scaling": "training_statistics"}, {"record_norm": 1.0}])
def test_no_optimum_is_claimed_for_features_that_are_changed(options) -> None:
    data = Synthetic(**options)
    assert load(data, IidPartition(num_partitions=2), 0, 0).optimum is None
