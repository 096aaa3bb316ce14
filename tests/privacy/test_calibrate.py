"""Calibration lands just below the budget, never above, and says no with both numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import InputError, Refused
from fedsim.privacy import calibrate, cost, gaussian
from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.privacy.rounding import shown_up
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Release

SAMPLERS = [FULL, Fresh(0.02), Subsample(0.1), Subsample(0.36), Poisson(0.1), Poisson(0.36)]
SAMPLERS += [WithReplacement(0.1)]

MIXABLE = [FULL, Fresh(0.01), *SAMPLERS[2:]]  # 4 x 20 fresh batches fit into a silo


def census(batch, count=35):
    return ((Release(batch, 1.0), count),)


def some_budgets(count, seed=0):
    rng = np.random.default_rng(seed)
    sizes, epsilons = rng.integers(100, 2001, count), rng.uniform(0.5, 8, count)
    return [Budget(int(n), float(eps), 1 / int(n) ** 2) for n, eps in zip(sizes, epsilons, strict=True)]


def assert_lands(plan, budgets, multipliers):
    assert len(multipliers) == len(budgets)
    for budget, z in zip(budgets, multipliers, strict=True):
        spent = cost.epsilon(plan, budget.n, z, budget.delta)
        assert budget.epsilon - 1e-3 * min(1.0, budget.epsilon) <= spent <= budget.epsilon


@pytest.mark.parametrize("batch", SAMPLERS, ids=repr)
def test_cost_lands_in_the_budgets_last_thousandth(batch):
    budgets = some_budgets(40)
    assert_lands(census(batch), budgets, noise_multipliers(census(batch), budgets, 1e6))


@pytest.mark.parametrize("batch", SAMPLERS, ids=repr)
@pytest.mark.parametrize("epsilon", [1e-4, 0.02, 40.0, 500.0])
def test_tiny_and_large_budgets_land_too(batch, epsilon):
    budgets = [Budget(1000, epsilon, 1e-6)]
    assert_lands(census(batch), budgets, noise_multipliers(census(batch), budgets, 1e9))


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("batch", [Subsample(0.05), Poisson(0.05)])
def test_one_release_and_a_thousand_land_too(batch, count):
    budgets = some_budgets(5, seed=count)
    assert_lands(census(batch, count), budgets, noise_multipliers(census(batch, count), budgets, 1e6))


@given(
    st.lists(
        st.tuples(st.sampled_from(MIXABLE), st.floats(0.2, 3), st.integers(1, 20)), min_size=1, max_size=4
    ),
    st.floats(0.1, 10),
)
@settings(max_examples=25)
def test_mixed_plans_land_too(entries, epsilon):
    plan = tuple((Release(batch, weight), count) for batch, weight, count in entries)
    budgets = [Budget(5000, epsilon, 1e-7)]
    assert_lands(plan, budgets, noise_multipliers(plan, budgets, 1e6))


def test_a_silos_number_does_not_depend_on_the_others():
    budgets = some_budgets(12)
    for batch in SAMPLERS:
        together = noise_multipliers(census(batch), budgets, 1e6)
        alone = [noise_multipliers(census(batch), [budget], 1e6)[0] for budget in budgets]
        assert together == alone


def test_order_and_repetition_are_kept():
    one, two = Budget(200, 1.0, 1e-5), Budget(200, 2.0, 1e-5)
    a, b, c = noise_multipliers(census(Subsample(0.2)), [one, two, one], 1e6)
    assert a == c > b


def test_a_silo_that_releases_nothing_adds_nothing():
    assert noise_multipliers((), some_budgets(3), 0.0) == [0.0, 0.0, 0.0]


def test_no_limit_on_epsilon_needs_no_noise():
    for batch in SAMPLERS:
        assert noise_multipliers(census(batch), [Budget(1000, math.inf, 1e-6)], 1.0) == [0.0]


@pytest.mark.parametrize("batch", SAMPLERS, ids=repr)
def test_refused_names_both_numbers(batch):
    budget, limit = Budget(1000, 0.5, 1e-6), 0.125
    spent = cost.epsilon(census(batch), budget.n, limit, budget.delta)
    with pytest.raises(Refused) as refusal:
        noise_multipliers(census(batch), [budget], limit)
    assert str(refusal.value) == (
        f"plan costs epsilon {shown_up(spent, 6)} at noise multiplier 0.125, the largest this silo allows; "
        "its budget is 0.5"
    )


@pytest.mark.parametrize("batch", SAMPLERS, ids=repr)
def test_the_limit_binds_only_when_more_noise_is_needed(batch):
    budget = Budget(1000, 1.0, 1e-6)
    (z,) = noise_multipliers(census(batch), [budget], 1e6)
    assert noise_multipliers(census(batch), [budget], z) == [z]
    with pytest.raises(Refused):
        noise_multipliers(census(batch), [budget], z * 0.99)


def test_a_limit_inside_the_search_tolerance_is_enough():
    budget, plan = Budget(1000, 1.0, 1e-6), census(Subsample(0.1))
    (z,) = noise_multipliers(plan, [budget], 1e6)
    limit = z * (1 - 1e-6)
    assert cost.epsilon(plan, budget.n, limit, budget.delta) <= budget.epsilon
    assert noise_multipliers(plan, [budget], limit) == [limit]


def test_a_cost_that_jumps_over_the_budget_is_met_from_below():
    z = calibrate.secant(lambda z: 5.0 / z if z < 2 else 0.5 / z, 0.3, 1.0)
    assert z == pytest.approx(2.0, rel=1e-9)
    assert z >= 2.0


@pytest.mark.parametrize(
    ("field", "budget"),
    [
        ("n", (0, 1.0, 1e-5)),
        ("epsilon", (10, 0.0, 1e-5)),
        ("epsilon", (10, math.nan, 1e-5)),
        ("delta", (10, 1.0, 1.0)),
    ],
)
def test_impossible_budgets_are_input_errors_that_name_the_field(field, budget):
    with pytest.raises(InputError, match=f"budget.{field}"):
        Budget(*budget)


@pytest.mark.parametrize("batch", [FULL, Fresh(0.02)])
def test_a_thousand_silos_in_closed_form_are_inverted_together(batch, monkeypatch):
    calls = []
    mu = gaussian.mu
    monkeypatch.setattr(gaussian, "mu", lambda *each: calls.append(1) or mu(*each))
    noise_multipliers(census(batch), some_budgets(1000), 1e6)
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("batch", [Subsample(0.1), Subsample(0.36), Poisson(0.1), Poisson(0.36)], ids=repr)
def test_a_thousand_sampled_silos_take_a_few_prices_each(batch, monkeypatch):
    budgets, prices = some_budgets(1000), []
    epsilon = cost.Composition.epsilon
    counted = lambda self, z, delta: prices.append(z) or epsilon(self, z, delta)  # noqa: E731
    monkeypatch.setattr(cost.Composition, "epsilon", counted)
    multipliers = noise_multipliers(census(batch), budgets, 1e6)
    assert len(prices) <= 6 * len(budgets)
    monkeypatch.undo()
    assert_lands(census(batch), budgets, multipliers)
