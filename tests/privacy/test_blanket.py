"""Messages in random order: the bound against simulated likelihoods, and the worst pair that is known."""

from math import exp, sqrt

import numpy as np
import pytest
from scipy import stats
from support.helpers import FALSE_ALARM
from support.shuffled_attack import attained

from fedsim.privacy import gaussian, loss
from fedsim.privacy.blanket import BlanketPair, apart, widest


def likelihoods(distance: float, count: int, trials: int, seed: int) -> np.ndarray:
    """Sums of `count` likelihoods exp(sqrt(2) c G - c^2), drawn."""
    rng, sums = np.random.default_rng(seed), np.zeros(trials)
    for _ in range(count):
        sums += np.exp(sqrt(2) * distance * rng.standard_normal(trials) - distance**2)
    return sums


@pytest.mark.parametrize(("distance", "messages"), [(0.1, 60), (0.4, 25)])
def test_the_profile_is_that_of_two_independent_sums(distance: float, messages: int) -> None:
    """E (X - e^eps Y)_+ / m: within the error of 200,000 draws, and never above the computed bound."""
    x, y = (likelihoods(distance, messages, 200_000, seed) for seed in (1, 2))
    pair = BlanketPair(distance, messages, 1e-9)
    width = float(np.std(x)) / messages
    for epsilon in (0.0, 0.5 * width, 1.5 * width):
        drawn = np.maximum(0, x - exp(epsilon) * y) / messages
        error = stats.norm.isf(FALSE_ALARM) * drawn.std() / sqrt(len(drawn))
        bound = float(pair.profile(np.array([epsilon]))[0])
        assert drawn.mean() - error < bound < drawn.mean() + error + 0.003 * bound


def test_of_one_message_it_is_the_gaussian_pair() -> None:
    """m = 1: an orthogonal pair at distance 2 c, exactly."""
    pair = BlanketPair(0.4, 1, 1e-9)
    for epsilon in (0.0, 0.5, 1.5):
        exact = float(gaussian.profile(epsilon, 0.8))
        assert exact <= float(pair.profile(np.array([epsilon]))[0]) <= 1.01 * exact + 1e-5


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_a_senders_message_is_that_close_to_one_with_a_blanket(distance: float, share: float) -> None:
    """The density of gamma omega above N(c, 1), integrated: what a decomposition cannot have."""
    x = np.linspace(-12, 12, 200_001)
    above = np.maximum(0, share * stats.norm.pdf(x) - stats.norm.pdf(x - distance))
    found = apart(distance, 101, share)
    assert above.sum() * (x[1] - x[0]) * 100 == pytest.approx(found, rel=1e-5, abs=1e-12)


def test_few_blanket_messages_are_rare() -> None:
    pair = BlanketPair.of(0.2, 1000, 0.3, 1e-8)
    k = pair.messages - 1
    assert stats.binom.cdf(k - 1, 999, 0.3) <= 1e-8 < stats.binom.cdf(k, 999, 0.3)
    assert pair.infinite >= 1e-8
    wide = widest(0.2, 1000, 1e-9)
    assert apart(0.2, 1000, wide) <= 1e-9 < apart(0.2, 1000, 1.01 * wide)


def contracted(rng: np.random.Generator, distance: float) -> None:
    """One random pair of means in the ball, as a contraction of the orthogonal pair of norms sqrt(2) c."""
    a, b = rng.normal(size=(2, 3))
    a, b = (distance * rng.random() ** 0.1 * v / np.linalg.norm(v) for v in (a, b))
    if rng.random() < 0.2:
        b = -a
    moved = np.stack([a, b], axis=1) / (sqrt(2) * distance)  # T, on the orthogonal pair's plane
    assert np.linalg.norm(moved, 2) <= 1 + 1e-12


def test_every_pair_of_means_comes_from_an_orthogonal_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        contracted(rng, 0.7)
    antipodal = np.array([[1.0, -1.0], [0.0, 0.0]])
    assert np.linalg.norm(antipodal, 2) > 1.4  # of norms c alone it would not be


def test_the_worst_pair_attains_what_its_likelihood_says() -> None:
    """Drawn: E (sum V_i / N - e^eps)_+ with all others at -C."""
    distance, silos, trials = 0.2, 50, 200_000
    rng, sums = np.random.default_rng(0), np.zeros(trials)
    for _ in range(silos):
        sums += np.exp(2 * distance * rng.standard_normal(trials) - 2 * distance**2)
    for epsilon in (0.0, 0.05, 0.1):
        drawn = np.maximum(0, sums / silos - exp(epsilon))
        error = stats.norm.isf(FALSE_ALARM) * drawn.std() / sqrt(trials)
        assert drawn.mean() * 0.99 - error < attained(distance, silos, epsilon) < drawn.mean() + error


def test_rounds_compose_to_more_and_more_silos_to_less() -> None:
    shares = {silos: widest(0.2, silos, 1e-10) for silos in (1000, 10_000)}
    few, many = (BlanketPair.of(0.2, silos, share, 1e-9) for silos, share in shares.items())
    once, often = loss.epsilon([(few, 1)], 1e-6), loss.epsilon([(few, 35)], 1e-6)
    assert once * sqrt(35) < often < 35 * once
    assert loss.epsilon([(many, 1)], 1e-6) < once / 2
