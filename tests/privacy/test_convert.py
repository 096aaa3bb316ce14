"""Guarantees in other units: closed forms, an exact instance, and where nothing is left."""

import math

import numpy as np
import pytest
from support.refusals import refused

from fedsim.privacy import convert, gaussian


def test_group_privacy_by_hand():
    assert convert.group(0.5, 1e-6, 1) == (0.5, 1e-6)
    two = convert.group(0.5, 1e-6, 2)
    assert two == pytest.approx((1.0, 2e-6 * math.exp(0.5)))
    five = convert.group(0.5, 1e-6, 5)
    assert five == pytest.approx((2.5, 5e-6 * math.exp(2.0)))
    assert convert.group(0.5, 0.0, 1000) == (500.0, 0.0)


@pytest.mark.parametrize(("epsilon", "delta", "k"), [(1.0, 0.2, 3), (math.inf, 1e-9, 1), (1.0, 1e-6, 5000)])
def test_a_delta_of_one_is_no_guarantee(epsilon, delta, k):
    assert convert.group(epsilon, delta, k) is None


@pytest.mark.parametrize("mu", [0.2, 1.0])
@pytest.mark.parametrize("k", [2, 5, 10])
def test_the_exact_gaussian_group_is_attained_and_below_the_generic_bound(mu, k):
    delta = 1e-9
    exact = convert.group_gaussian(mu, delta, k)
    # Attained: k records that move together shift the mean by k mu; hockey-stick by integration.
    x = np.linspace(-40, 60, 400_001)
    p, q = np.exp(-((x - k * mu) ** 2) / 2), np.exp(-(x**2) / 2)
    scale = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    stick = [
        float(np.maximum(p - math.exp(e) * q, 0).sum() * scale) for e in (exact.epsilon, 0.99 * exact.epsilon)
    ]
    assert stick[0] == pytest.approx(delta, rel=1e-3)
    assert stick[1] > 1.05 * delta
    # The generic bound at every record-level point of the curve.
    for small in (1e-30, 1e-20, 1e-12):
        record = float(gaussian.epsilon(mu, small))
        generic = convert.group(record, small, k)
        if generic is not None:
            assert float(gaussian.epsilon(k * mu, generic.delta)) <= generic.epsilon


def test_user_level_is_the_group_of_all_records_and_the_recipe_reaches_its_target():
    assert convert.group(0.01, 1e-8, 50) == pytest.approx((0.5, 50e-8 * math.exp(0.49)))
    for target, delta, n in [(1.0, 1e-5, 1), (1.0, 1e-5, 1000), (0.1, 1e-3, 7)]:
        record = convert.hybrid(target, delta, n)
        assert record == (target / n, delta / (4 * n))
        user = convert.group(*record, n)
        assert user.epsilon == pytest.approx(target)
        assert user.delta < delta
    with refused("epsilon", 1.01):
        convert.hybrid(1.01, 1e-5, 10)
    with refused("delta", 0.0):
        convert.hybrid(0.5, 0.0, 10)
    with pytest.raises(ValueError, match="positive"):
        convert.hybrid(0.5, 1e-5, 0)


def test_silos_do_not_add_up_centrally():
    assert convert.central([(1.0, 1e-5), (3.0, 1e-7), (2.0, 1e-4)]) == (3.0, 1e-4)
    assert convert.central([(1.0, 1e-5), (math.inf, 1e-5)]) is None


def test_infinite_mu_gives_nothing_and_no_release_gives_everything():
    assert convert.group_gaussian(math.inf, 1e-5, 2) is None
    assert convert.group_gaussian(0.0, 1e-5, 2) == (0.0, 1e-5)
