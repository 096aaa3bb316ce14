"""Binomial noise in a window: the lemma against the sum itself, and what was published beside it."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp
from support.cpsgd import cpsgd_epsilon

from fedsim.mechanisms.shuffled_binomial import excess
from fedsim.privacy import gaussian
from fedsim.privacy.gaussian import renyi_epsilon


def divergence(bits: int, shift: int, order: float, window: float) -> float:
    """ln sum over |x| <= window of p(x)^order p(x - shift)^(1 - order), over order - 1."""
    x = np.arange(-int(window), int(window) + 1)

    def log_p(at: np.ndarray) -> np.ndarray:
        ones = at + bits // 2
        return np.asarray(gammaln(bits + 1) - gammaln(ones + 1) - gammaln(bits - ones + 1) - bits * log(2))

    return float(logsumexp(order * log_p(x) + (1 - order) * log_p(x - shift))) / (order - 1)


@pytest.mark.parametrize("bits", [400, 10_000, 300_000])
@pytest.mark.parametrize("tail", [1e-3, 1e-12])
def test_the_lemma_bounds_the_divergence_in_the_window(bits: int, tail: float) -> None:
    """For every shift and order tried; and it is tight where bits are many: a smaller variance would fail."""
    window, reach = sqrt(bits * log(2 / tail) / 2), max(1, int(0.15 * sqrt(bits)))
    e = excess(bits, reach, tail)
    for shift in {1, 2, reach // 2 + 1, reach}:
        for order in (1.01, 2.0, 7.5, 40.0):
            exact = divergence(bits, shift, order, window)
            gaussian_part = 2 * order * shift**2 / (bits + 1)
            assert exact <= gaussian_part + e * shift
            if bits == 300_000 and shift == reach and 2 <= order <= 8:
                assert exact > 0.98 * gaussian_part
    outside = 2 * stats.binom.sf(bits // 2 + int(window), bits, 0.5)
    assert outside <= tail


def test_the_excess_falls_with_bits_and_is_infinite_where_there_are_too_few() -> None:
    found = [excess(bits, 10, 1e-9) for bits in (50, 1000, 10_000, 10**6)]
    assert found[0] == inf
    assert found == sorted(found, reverse=True)


def test_the_conversion_is_never_below_the_exact_gaussian() -> None:
    """And at most 15 % above where delta is small."""
    for mu in (0.01, 0.1, 1.0, 5.0):
        for delta in (1e-5, 1e-9):
            exact = float(gaussian.epsilon(mu, delta))
            assert exact <= renyi_epsilon(mu, delta) <= 1.15 * exact
    assert renyi_epsilon(0.0, 1e-6) == 0
    assert renyi_epsilon(inf, 1e-6) == renyi_epsilon(1.0, 1e-6, inf) == inf
    assert renyi_epsilon(1.0, 1e-6, 0.5) == pytest.approx(renyi_epsilon(1.0, 1e-6) + 0.5)


def profile_of_one_coordinate(bits: int, shift: int, epsilon: float) -> float:
    """The exact delta of one release of one coordinate."""
    x = np.arange(0, bits + 1)
    p, q = stats.binom.pmf(x, bits, 0.5), stats.binom.pmf(x - shift, bits, 0.5)
    return float(np.maximum(0, p - exp(epsilon) * q).sum())


@pytest.mark.parametrize(("bits", "shift"), [(2000, 5), (20_000, 30), (200_000, 100)])
def test_a_claim_is_never_below_what_one_coordinate_attains(bits: int, shift: int) -> None:
    delta = 1e-6
    mu = shift / sqrt((bits + 1) / 4)
    claimed = renyi_epsilon(mu, 0.99 * delta, excess(bits, shift, 0.01 * delta) * shift)
    assert profile_of_one_coordinate(bits, shift, claimed) <= delta
    assert profile_of_one_coordinate(bits, shift, 0.7 * claimed) > delta


def test_cpsgd_agrees_and_is_the_weaker_of_the_two() -> None:
    """The reference's figures: 13.0 and 11.0 clips at d = 50, epsilon 1, delta 1e-6, with g = 32 and 200."""
    for g, wanted in ((32, 13.0), (200, 11.0)):
        l2, linf = 2 * g + sqrt(50), 2 * g + 1
        bits = 4
        while cpsgd_epsilon(bits, 50, l2, linf, 1e-6) > 1:
            bits = int(bits * 1.01) + 1
        assert sqrt(bits) / 2 / g == pytest.approx(wanted, rel=0.02)
        ours = renyi_epsilon(l2 / (sqrt(bits) / 2), 0.99e-6, excess(bits, linf, 1e-8 / 50) * sqrt(50) * l2)
        assert ours < 0.95
    assert cpsgd_epsilon(100, 50, 71.0, 65.0, 1e-6) == inf
