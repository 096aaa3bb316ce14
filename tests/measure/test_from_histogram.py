"""Metrics from a noisy histogram of scores: how near they are, and whether their standard error says so."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit
from sklearn import metrics as sklearn

from fedsim.measure.from_histogram import Estimate, auc, metrics
from fedsim.privacy import gaussian

Array = npt.NDArray[np.float64]
BOUND = 0.01
MEANS = ("mean_predicted_probability", "observed_share")
NAMES = ("accuracy", "auc", "brier", "log_loss", *MEANS, "calibration_error")


def scored(n: int, seed: int, slope: float = 1.0, shift: float = 0.0) -> tuple[Array, Array]:
    """Probabilities that a logistic model states, and classes; `slope` below 1 makes it overconfident."""
    rng = np.random.default_rng(seed)
    score = 1.5 * rng.standard_normal(n) + shift
    return expit(score), (rng.random(n) < expit(slope * score)).astype(float)


def histogram(p: Array, y: Array, bins: int) -> Array:
    cell = y.astype(int) * bins + np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)
    return np.bincount(cell, minlength=2 * bins).reshape(2, bins).astype(float)


def exact(p: Array, y: Array, bins: int) -> dict[str, float]:
    bin_of = np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)
    return {
        "accuracy": float(np.mean((p > 0.5) == y)),
        "auc": float(sklearn.roc_auc_score(y, p)),
        "brier": float(sklearn.brier_score_loss(y, p)),
        "log_loss": float(sklearn.log_loss(y, p.clip(BOUND, 1 - BOUND))),
        "mean_predicted_probability": float(p.mean()),
        "observed_share": float(y.mean()),
        "calibration_error": sum(abs(float((y - p)[bin_of == k].sum())) for k in range(bins)) / len(p),
    }


def noise_of(silos: int, n: int, epsilon: float, summed: bool) -> float:
    """Of a cell of the sum, where a silo (or the sum) spends all of epsilon at delta 1 / n^2 on it."""
    z = 1 / float(gaussian.mu(epsilon, 1 / n**2))
    return z * math.sqrt(2) * (1 if summed else math.sqrt(silos))


@pytest.mark.parametrize("bins", [10, 50, 200])
def test_without_noise_only_binning_is_left(bins: int) -> None:
    p, y = scored(20_000, 0, slope=0.7)
    found, truth = metrics(histogram(p, y, bins), 0.0, len(p), BOUND), exact(p, y, bins)
    assert set(found) == set(NAMES)
    assert found["accuracy"].value == pytest.approx(truth["accuracy"], abs=1e-12)
    for name in NAMES:
        assert abs(found[name].value - truth[name]) < 0.2 / bins
        assert found[name].standard_error < 1e-12
    counts = histogram(p, y, bins)
    bin_of = np.repeat([np.arange(bins)] * 2, counts.astype(int).ravel())
    tied = sklearn.roc_auc_score(np.repeat([0, 1], counts.sum(axis=1).astype(int)), bin_of.ravel())
    assert found["auc"].value == pytest.approx(tied, abs=1e-12)


@pytest.mark.parametrize(
    ("silos", "n", "bins", "epsilon", "summed", "most"),
    [(25, 248, 10, 1.0, False, 0.015), (25, 248, 20, 1.0, True, 0.005), (5, 300, 10, 1.0, False, 0.03)],
    ids=["each silo's noise", "one noise", "five silos"],
)
def test_the_stated_error_covers_the_truth(
    silos: int, n: int, bins: int, epsilon: float, summed: bool, most: float
) -> None:
    """In 200 repetitions, each with records of its own; half or twice the error would not do."""
    noise, rng = noise_of(silos, n, epsilon, summed), np.random.default_rng(1)
    ratios: dict[str, list[float]] = {name: [] for name in NAMES}
    errors = []
    for seed in range(200):
        p, y = scored(silos * n, seed, slope=0.5)
        counts = histogram(p, y, bins)
        found = metrics(counts + noise * rng.standard_normal(counts.shape), noise, len(p), BOUND)
        truth = exact(p, y, bins)
        for name in NAMES:
            ratios[name].append((found[name].value - truth[name]) / found[name].standard_error)
        errors.append(found["auc"].value - truth["auc"])
        assert not found["auc"].too_few
    assert np.sqrt(np.mean(np.square(errors))) <= most
    for name in NAMES:
        covered = [float(np.mean(np.abs(ratios[name]) <= 2 * factor)) for factor in (0.5, 1, 2)]
        if name == "calibration_error":  # its error is a bound
            assert covered[1] >= 0.9
        elif name != "log_loss":  # where its binning shows
            assert 0.9 <= covered[1] <= 0.99
            assert covered[0] < 0.9
            assert covered[2] > 0.99


@pytest.mark.parametrize("name", NAMES[:6])
def test_the_standard_error_is_that_of_the_noise(name: str) -> None:
    p, y = scored(6200, 0)
    counts, noise, rng = histogram(p, y, 10), 5.0, np.random.default_rng(2)
    found = [metrics(counts + noise * rng.standard_normal((2, 10)), noise, 6200)[name] for _ in range(400)]
    stated = metrics(counts, noise, 6200)[name].standard_error
    assert np.std([one.value for one in found]) == pytest.approx(stated, rel=0.12)


def test_the_public_total_takes_half_of_the_variance_of_accuracy_away() -> None:
    p, y = scored(1000, 0)
    found = metrics(histogram(p, y, 10), 3.0, 1000)["accuracy"]
    assert found.standard_error == pytest.approx(3.0 * math.sqrt(10 / 2) / 1000)
    shifted = metrics(histogram(p, y, 10) + 7.0, 3.0, 1000)
    assert shifted["accuracy"].value == pytest.approx(found.value, abs=1e-12)


def test_gaps_are_lengthened_by_noise_and_shortened_again() -> None:
    """The bounds on bias and error that the calibration error's standard error is made of."""
    e = np.linspace(-9, 9, 20_001)
    weight = np.exp(-(e**2) / 2) / np.exp(-(e**2) / 2).sum()
    for gap in np.linspace(0, 6, 61):
        x = gap + e
        length = np.abs(x) - 0.95 * np.exp(-(x**2))
        mean = float(length @ weight)
        assert abs(mean - gap) <= 0.25
        assert float((length - gap) ** 2 @ weight) <= 1.21**2
    p, y = scored(6200, 0)
    noise, rng = 25.0, np.random.default_rng(0)
    drawn = [
        metrics(histogram(p, y, 10) + noise * rng.standard_normal((2, 10)), noise, 6200) for _ in range(200)
    ]
    bias = np.mean([one["calibration_error"].value for one in drawn]) - exact(p, y, 10)["calibration_error"]
    assert abs(bias) < 0.004  # 0.017 if nothing were taken off


def test_too_few_records_are_said_to_be_so() -> None:
    p, y = scored(40, 0)
    noise = noise_of(1, 40, 1.0, False)
    assert metrics(histogram(p, y, 10), noise, 40)["auc"].too_few
    assert not Estimate(0.7, 0.1).too_few
    assert Estimate(0.5, math.nan).too_few
    assert Estimate(0.5, math.inf).too_few


@pytest.mark.parametrize("total", [-5.0, 0.0])
def test_a_class_without_records_has_no_auc(total: float) -> None:
    counts = np.stack([np.full(4, 10.0), np.full(4, total / 4)])
    found = auc(counts, 1.0)
    assert (found.value, found.standard_error) == (0.5, math.inf)


def test_values_stay_in_their_range_whatever_the_noise() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = metrics(30 * rng.standard_normal(20), 30.0, 50, BOUND)
        for name in NAMES:
            highest = -math.log(BOUND) if name == "log_loss" else 1.0
            assert 0 <= found[name].value <= highest


@pytest.mark.parametrize("bins", [2, 10, 40])
def test_bins_move_a_metric_by_what_is_stated_at_most(bins: int) -> None:
    """Scores anywhere; where a bin hides all of an order, by all of it."""
    rng, reached = np.random.default_rng(bins), 0.0
    for width in (1.0, 0.2, 0.01):
        for sharp in (0.0, 1.0, 50.0, 1e6):
            p = 0.5 + width * (rng.random(400) - 0.5) + (width < 1 and 0.5 / bins)
            middle = 0.5 if width == 1 else 0.5 + 0.5 / bins
            y = (rng.random(400) < expit(sharp * (p - middle) / width)).astype(float)
            found, truth = metrics(histogram(p, y, bins), 0.0, 400), exact(p, y, bins)
            for name in ("accuracy", "auc", "brier", "log_loss"):
                assert abs(found[name].value - truth[name]) <= found[name].binning + 0.02 / bins + 1e-12, name
            assert found["accuracy"].binning == 0.0
            if found["auc"].binning:
                reached = max(reached, abs(found["auc"].value - truth["auc"]) / found["auc"].binning)
    assert reached > 0.99
