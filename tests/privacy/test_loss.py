"""Composition on a grid: against closed forms, dp-accounting, and the rounding that it promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.privacy import gaussian, loss, verify
from fedsim.privacy.pairs import (
    AddRemovePair,
    GaussianPair,
    PoissonPair,
    SubsampledPair,
    WithReplacementPair,
    profile,
)


@given(mu=st.floats(0.01, 3), count=st.integers(1, 300), delta=st.floats(1e-15, 0.1))
@settings(max_examples=60)
def test_composed_gaussians_are_above_the_closed_form_and_close(mu, count, delta):
    exact = float(gaussian.epsilon(mu * math.sqrt(count), delta))
    eps = loss.epsilon([(GaussianPair(mu), count)], delta)
    assert exact <= eps <= exact + 3e-4 * max(1.0, exact / 10)


@pytest.mark.parametrize(
    ("pair", "count", "delta"),
    [
        (SubsampledPair(0.6, 0.36), 35, 1e-6),
        (SubsampledPair(2.5, 0.05), 10, 1e-5),
        (SubsampledPair(1.0, 0.1), 1, 1e-4),
        (PoissonPair(0.6, 0.36), 35, 1e-6),
        (PoissonPair(3.0, 0.05), 10, 1e-5),
        (AddRemovePair(0.6, 0.36), 35, 1e-6),
        (AddRemovePair(3.0, 0.05), 10, 1e-5),
        (WithReplacementPair(0.6, 100, 36), 35, 1e-6),
    ],
)
def test_sampled_pairs_agree_with_dp_accounting(pair, count, delta):
    library = verify.composed([(pair, count)], delta, 5e-4)
    assert loss.epsilon([(pair, count)], delta) == pytest.approx(library, abs=4e-4)


def test_masses_agree_with_dp_accounting_cell_by_cell():
    from dp_accounting.pld import pld_pmf

    pair, step, cells = SubsampledPair(1.0, 0.2), 0.01, 300
    ours = loss._discretise(pair, step, cells, 1)
    deltas = profile(pair, step * np.arange(-cells, cells + 1))
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots(step, np.arange(-cells, cells + 1), deltas)
    masses = [theirs._loss_probs[i] for i in range(-cells, cells + 1)]
    np.testing.assert_allclose(np.exp(ours.log_mass), masses, atol=1e-12)
    assert ours.infinite == pytest.approx(theirs._infinity_mass, rel=1e-12)


DISCRETE = [GaussianPair(1.0), SubsampledPair(1.0, 0.2), PoissonPair(4.0, 0.02), AddRemovePair(1.0, 0.2)]


@pytest.mark.parametrize("pair", [*DISCRETE, AddRemovePair(1.0, 0.2, added=True)])
def test_discrete_losses_are_a_pair_of_distributions_above_the_profile(pair):
    losses = loss._discretise(pair, 0.05, 120, 1)
    mass, values = np.exp(losses.log_mass), losses.values()
    assert mass.sum() + losses.infinite == pytest.approx(1, abs=1e-12)
    # The second distribution lacks as much: that is its mass at minus infinity.
    assert mass @ np.exp(-values) + losses.infinite == pytest.approx(1, abs=1e-12)
    for eps in np.linspace(-3, 3, 41):
        above = losses.infinite + mass @ np.maximum(0, -np.expm1(eps - values))
        assert above >= float(profile(pair, eps)) - 1e-13


@pytest.mark.parametrize("pair", [SubsampledPair(1.0, 0.1), PoissonPair(1.0, 0.1)])
def test_a_finer_grid_never_costs_more_and_saves_little(pair, monkeypatch):
    eps = loss.epsilon([(pair, 50)], 1e-6)
    wanted = loss._wanted_step
    monkeypatch.setattr(loss, "_wanted_step", lambda *args: wanted(*args) / 8)
    finer = loss.epsilon([(pair, 50)], 1e-6)
    assert finer <= eps <= finer + 3e-4


@pytest.mark.parametrize("delta", [1e-14, 1e-22, 1e-30])
def test_delta_below_machine_precision_is_still_accurate(delta):
    exact = float(gaussian.epsilon(0.2 * math.sqrt(40), delta))
    assert loss.epsilon([(GaussianPair(0.2), 40)], delta) == pytest.approx(exact, abs=3e-4)


def test_bimodal_losses_do_not_blow_up():
    # Rare sampling with little noise: the bulk of the losses is 1e4 times narrower than their reach.
    pair = PoissonPair(1 / 0.4880334144298566, 0.05)
    library = verify.composed([(pair, 35)], 1e-6, 2e-3)
    assert loss.epsilon([(pair, 35)], 1e-6) == pytest.approx(library, rel=2e-3)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("count", [1, 50])
def test_truncation_is_counted_as_loss_however_coarse(count, delta, monkeypatch):
    # Half of delta cut off at the reach, and a window of less than one standard deviation.
    exact = float(gaussian.epsilon(0.3 * math.sqrt(count), delta))
    monkeypatch.setattr(loss, "_NEGLIGIBLE", 0.5)
    monkeypatch.setattr(loss, "_WIDTH", 0.8)
    eps = loss.epsilon([(GaussianPair(0.3), count)], delta)
    assert exact <= eps < 1.3 * exact + 0.1


def test_mass_above_the_window_is_infinite_loss(monkeypatch):
    delta, original = 1e-6, loss._window
    eps = loss.epsilon([(GaussianPair(0.3), 50)], delta)
    for share, low, high in [(0.5, eps + 0.05, math.inf), (1.1, math.inf, math.inf)]:

        def leaky(*args, share=share):
            return original(*args)[0], math.log(share * delta)

        monkeypatch.setattr(loss, "_window", leaky)
        assert low <= loss.epsilon([(GaussianPair(0.3), 50)], delta) <= high
