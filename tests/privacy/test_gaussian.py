"""The closed form: known values, inverses, edges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from fedsim.privacy import gaussian
from fedsim.privacy.gaussian import renyi_epsilon

MU = st.floats(1e-3, 30)
DELTA = st.floats(1e-12, 0.3)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("eps", [-2.0, -0.5, 0.0, 0.7, 3.0])
def test_profile_is_the_hockey_stick_divergence(mu, eps):
    def density(x, mean):
        return math.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)

    threshold = eps / mu + mu / 2
    value, _ = quad(lambda x: density(x, mu) - math.exp(eps) * density(x, 0), threshold, threshold + 40)
    assert gaussian.profile(eps, mu) == pytest.approx(value, abs=1e-9)


def test_profile_at_zero_is_total_variation():
    mu = np.array([0.01, 0.5, 2.0, 9.0])
    np.testing.assert_allclose(gaussian.profile(0.0, mu), 2 * ndtr(mu / 2) - 1, rtol=1e-12)


def test_profile_keeps_relative_accuracy_where_phi_underflows():
    # Phi(-x) = phi(x)/x (1 - 1/x^2 + 3/x^4 - ...) on both terms, at mu = 1, eps = 40.
    def log_phi(x):
        return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi))

    def series(x):
        return 1 - x**-2 + 3 * x**-4 - 15 * x**-6 + 105 * x**-8

    expected = math.exp(log_phi(39.5)) * series(39.5) - math.exp(40 + log_phi(40.5)) * series(40.5)
    assert gaussian.profile(40.0, 1.0) == pytest.approx(expected, rel=1e-8)
    assert expected < 1e-300


@pytest.mark.parametrize(
    ("variance_over_sensitivity", "exact"),
    [(4 * math.log(1e5), 0.520), (8 * math.log(1.25e5), 0.353)],
    ids=["P4", "P5"],
)
def test_thesis_calibrations_for_epsilon_1_are_conservative_by_the_known_factor(
    variance_over_sensitivity, exact
):
    assert gaussian.epsilon(variance_over_sensitivity**-0.5, 1e-5) == pytest.approx(exact, abs=5e-4)


@given(MU, DELTA)
def test_epsilon_is_the_smallest_that_holds(mu, delta):
    eps = float(gaussian.epsilon(mu, delta))
    assert gaussian.profile(eps, mu) <= delta
    if eps > 0:
        assert gaussian.profile(eps * (1 - 1e-6), mu) > delta


@given(st.floats(1e-3, 100), DELTA)
def test_mu_is_the_largest_that_holds(eps, delta):
    mu = float(gaussian.mu(eps, delta))
    assert gaussian.profile(eps, mu) <= delta
    assert gaussian.profile(eps, mu * (1 + 1e-6)) > delta


def test_an_array_gives_what_its_elements_give():
    rng = np.random.default_rng(0)
    mu, delta = rng.uniform(0.01, 5, 17), 10 ** rng.uniform(-9, -2, 17)
    one_by_one = [float(gaussian.epsilon(m, d)) for m, d in zip(mu, delta, strict=True)]
    np.testing.assert_allclose(gaussian.epsilon(mu, delta), one_by_one, rtol=1e-12)


def test_edges_cost_nothing_or_everything():
    assert gaussian.epsilon(0.0, 1e-5) == 0
    assert gaussian.epsilon(math.inf, 1e-5) == math.inf
    assert gaussian.mu(math.inf, 1e-5) == math.inf
    assert gaussian.epsilon(1e-7, 1e-5) == 0  # total variation is below delta


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan])
def test_delta_outside_the_unit_interval_is_an_error(delta):
    with pytest.raises(ValueError, match="delta"):
        gaussian.epsilon(1.0, delta)
    with pytest.raises(ValueError, match="delta"):
        gaussian.mu(1.0, delta)


def test_a_thousand_silos_cost_as_many_steps_as_the_hardest_of_them(monkeypatch):
    steps = []
    profile = gaussian.profile
    monkeypatch.setattr(gaussian, "profile", lambda *each: steps.append(1) or profile(*each))

    def counted(eps):
        steps.clear()
        gaussian.mu(eps, np.full(len(eps), 1e-6))
        return len(steps)

    eps = np.linspace(0.5, 8, 1000)
    assert counted(eps) == max(counted(eps[:1]), counted(eps[-1:]))


def test_the_conversion_is_never_below_the_exact_gaussian() -> None:
    """And at most 15 % above where delta is small."""
    for mu in (0.01, 0.1, 1.0, 5.0):
        for delta in (1e-5, 1e-9):
            exact = float(gaussian.epsilon(mu, delta))
            assert exact <= renyi_epsilon(mu, delta) <= 1.15 * exact
    assert renyi_epsilon(0.0, 1e-6) == 0
    assert renyi_epsilon(math.inf, 1e-6) == renyi_epsilon(1.0, 1e-6, math.inf) == math.inf
    assert renyi_epsilon(1.0, 1e-6, 0.5) == pytest.approx(renyi_epsilon(1.0, 1e-6) + 0.5)
