"""The profiles of sampled releases against numerical integration of their definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.privacy import gaussian
from fedsim.privacy.pairs import (
    AddRemovePair,
    GaussianPair,
    PoissonPair,
    SubsampledPair,
    WithReplacementPair,
    profile,
)

EPSILONS = [-3.0, -0.7, -0.1, 0.0, 0.05, 0.4, 1.5, 4.0]
X = np.linspace(-25.0, 30.0, 2_000_001)


def normal(mean):
    return np.exp(-((X - mean) ** 2) / 2) / math.sqrt(2 * math.pi)


def hockey_stick(p, q, eps):
    return float(np.maximum(p - math.exp(eps) * q, 0).sum() * (X[1] - X[0]))


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize(("mu", "q"), [(1.0, 0.3), (3.0, 0.05)])
def test_subsampled_profile_is_the_hockey_stick_divergence(mu, q, eps):
    # Upwards the mixture stands first, downwards second; at eps < 0 the other one gives the same number.
    base, moved = normal(0.0), normal(mu)
    mixture = (1 - q) * base + q * moved
    pair = (mixture, base) if eps >= 0 else (base, mixture)
    assert profile(SubsampledPair(mu, q), eps) == pytest.approx(hockey_stick(*pair, eps), abs=1e-7)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize(("mu", "q"), [(1.0, 0.3), (6.0, 0.05)])
def test_poisson_profile_is_the_hockey_stick_divergence(mu, q, eps):
    centre = (1 - q) * normal(0.0)
    expected = hockey_stick(centre + q * normal(mu / 2), centre + q * normal(-mu / 2), eps)
    assert profile(PoissonPair(mu, q), eps) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("mu", "q"), [(1.0, 0.3), (3.0, 0.05), (0.5, 0.99)])
def test_a_unit_removed_and_added_has_the_hockey_stick_divergence_of_its_order(mu, q, added, eps):
    removed = (1 - q) * normal(0.0) + q * normal(mu), normal(0.0)
    expected = hockey_stick(*(removed[::-1] if added else removed), eps)
    assert profile(AddRemovePair(mu, q, added), eps) == pytest.approx(expected, abs=1e-7)


@given(mu=st.floats(0.01, 50), q=st.floats(1e-4, 0.9999), tail=st.floats(1e-15, 1e-3))
def test_both_orders_are_in_reach_of_either(mu, q, tail):
    pair = AddRemovePair(mu, q)
    assert pair.reverse.reverse == pair
    assert 0 <= float(pair.reverse.profile(np.array(pair.reverse.reach(tail)))) <= tail
    assert float(pair.reverse.profile(np.array(-math.log1p(-q) * (1 + 1e-12)))) <= 1e-12


@pytest.mark.parametrize("eps", EPSILONS)
def test_gaussian_continuation_below_zero_is_the_closed_form(eps):
    assert profile(GaussianPair(1.3), eps) == pytest.approx(float(gaussian.profile(eps, 1.3)), abs=1e-14)


@pytest.mark.parametrize("pair", [SubsampledPair, PoissonPair, AddRemovePair])
@given(mu=st.floats(0.01, 20), q=st.floats(1e-4, 0.98), more=st.floats(1.001, 1.02))
@settings(max_examples=50)
def test_a_larger_rate_is_never_cheaper_and_full_batches_are_dearest(pair, mu, q, more):
    eps = np.linspace(-5, 10, 61)
    smaller = profile(pair(mu, q), eps)
    assert np.all(smaller <= profile(pair(mu, q * more), eps) + 1e-12)
    assert np.all(smaller <= gaussian.profile(eps, mu) + 1e-12)


@pytest.mark.parametrize(
    "pair",
    [GaussianPair(0.4), SubsampledPair(2.0, 0.1), PoissonPair(5.0, 0.01), WithReplacementPair(2.0, 50, 20)],
)
@pytest.mark.parametrize("tail", [1e-3, 1e-9, 1e-15])
def test_reach_leaves_at_most_the_tail(pair, tail):
    assert 0 <= float(profile(pair, pair.reach(tail))) <= tail


@pytest.mark.parametrize("pair", [SubsampledPair(200.0, 0.1), PoissonPair(200.0, 1e-5)])
def test_profiles_stay_finite_far_out(pair):
    values = profile(pair, np.array([0.0, 1.0, 500.0, 5_000.0, 30_000.0]))
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) <= 0)
    assert 0.5 * pair.q < values[0] <= pair.q * 1.0000001
