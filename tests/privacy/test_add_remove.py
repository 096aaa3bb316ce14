"""The price of Poisson batches where a unit is added or removed, against dp-accounting."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from fedsim.common.errors import Refused
from fedsim.privacy import calibrate, cost, loss, verify
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.mechanism import check_unit
from fedsim.privacy.pairs import AddRemovePair
from fedsim.privacy.registry import GAUSSIAN
from fedsim.protocol.batch import FULL, Poisson
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Release
from fedsim.protocol.unit import RECORD, Person

N, DELTA = 200, 1e-5
ADDED = Person(relation="add_remove")
ADD_OR_REMOVE = dp.NeighboringRelation.ADD_OR_REMOVE_ONE


def of_rounds(q: float, count: int, unit=ADDED, full: int = 0):
    """The census of a plan of `count` Poisson rounds and `full` ones on everybody."""
    gradient = QueryShape("gradient", 1, 1.0)
    asks = (Ask(Poisson(q), (gradient,)),), (Ask(FULL, (gradient,)),)
    return Plan((asks[0],) * count + (asks[1],) * full, unit).census()


@pytest.mark.parametrize(
    ("q", "z", "count", "full"),
    [(0.1, 1.0, 30, 0), (0.5, 2.0, 10, 0), (0.02, 0.8, 100, 0), (0.2, 2.0, 10, 3)],
)
def test_the_price_is_that_of_the_librarys_accountant(q, z, count, full):
    accountant = PLDAccountant(ADD_OR_REMOVE, value_discretization_interval=1e-4)
    accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), count)
    if full:
        accountant.compose(dp.GaussianDpEvent(z), full)
    expected = accountant.get_epsilon(DELTA)
    census = of_rounds(q, count, full=full)
    assert cost.epsilon(census, N, z, DELTA) == pytest.approx(expected, rel=2e-3)
    assert verify.epsilon(census, N, z, DELTA) == pytest.approx(expected, rel=2e-3)
    # Either wrong pair: that of a replaced unit at the same multiplier, and no gain from sampling.
    replaced = cost.epsilon(of_rounds(q, count, Person(), full), N, z, DELTA)
    assert abs(replaced - expected) > 0.01 * expected
    assert cost.epsilon(of_rounds(1.0, count, full=full), N, z, DELTA) > 1.1 * expected


def alone(loss: np.ndarray, q: float, mu: float, added: bool) -> np.ndarray:
    """The hockey-stick divergence of one round at losses of either sign, in closed form."""
    sign = -1 if added else 1
    above = np.expm1(sign * loss) + q  # of the ratio over 1 - q, which ends where this is 0
    t = np.full_like(loss, -np.inf)
    t[above > 0] = np.log(above[above > 0] / q) / mu + mu / 2
    mixed, plain = (1 - q) * norm.cdf(-sign * t) + q * norm.cdf(sign * (mu - t)), norm.cdf(-sign * t)
    return plain - np.exp(loss) * mixed if added else mixed - np.exp(loss) * plain


def divergence(epsilon: float, q: float, mu: float, count: int, added: bool) -> float:
    """The same of one round or two, the first by the midpoint rule."""
    if count == 1:
        return float(alone(np.array([epsilon]), q, mu, added)[0])
    x = np.linspace(-10, 10 + mu, 20_001)
    ratio, mass = np.log(1 - q + q * np.exp(mu * x - mu**2 / 2)), norm.pdf(x) * (x[1] - x[0])
    if added:
        return float((mass * alone(epsilon + ratio, q, mu, True)).sum())
    return float((mass * np.exp(ratio) * alone(epsilon - ratio, q, mu, False)).sum())


@pytest.mark.parametrize("delta", [1e-7, DELTA, 1e-2])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("q", "z"), [(0.01, 1.0), (0.07, 0.36), (0.1, 0.4), (0.1, 1.0), (0.1, 3.0), (0.5, 0.8), (0.9, 0.4)]
)
def test_the_price_of_one_round_or_two_is_never_below_the_truth_and_close(q, z, count, delta):
    """There the losses of an added unit, which end at -ln(1 - q) a round, mostly stand at their end."""

    def true(epsilon: float) -> float:
        return max(divergence(epsilon, q, 1 / z, count, added) for added in (False, True))

    price = cost.epsilon(of_rounds(q, count), N, z, delta)
    assert true(price) <= delta * (1 + 1e-9)
    assert price == 0 or true(0.998 * price - 1e-4) > delta


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("q", "mu", "delta"), [(0.07, 2.0, 0.01), (0.1, 2.0, 1e-5), (0.5, 1.0, 1e-3)])
def test_an_added_unit_by_itself_is_priced_where_its_losses_end(q, mu, delta, count):
    found = loss._epsilon([(AddRemovePair(mu, q, added=True), count)], delta)
    assert divergence(found, q, mu, count, True) <= delta * (1 + 1e-9)
    assert found == 0 or divergence(0.998 * found - 1e-4, q, mu, count, True) > delta


def test_only_poisson_batches_tell_and_full_ones_cost_as_ever():
    assert {release.removed for release, _ in of_rounds(0.1, 5, full=2)} == {True, False}
    assert cost.epsilon(of_rounds(1.0, 5), N, 2.0, DELTA) == cost.epsilon(
        ((Release(FULL, 1.0), 5),), N, 2.0, DELTA
    )


def test_it_grows_with_rounds_and_rate_and_falls_with_noise():
    def at(q=0.2, count=10, z=1.5):
        return cost.epsilon(of_rounds(q, count), N, z, DELTA)

    assert at(q=0.1) < at() < at(q=0.4)
    assert at(count=5) < at() < at(count=20)
    assert at(z=3.0) < at() < at(z=0.75)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0])
def test_the_calibrated_noise_costs_the_budget(epsilon):
    census = of_rounds(0.1, 30)
    (z,) = calibrate.noise_multipliers(census, [Budget(N, epsilon, DELTA)], 1e4)
    assert epsilon - 1e-3 <= cost.epsilon(census, N, z, DELTA) <= epsilon


@pytest.mark.parametrize("name", ["second_moment", "mistakes"])
def test_poisson_has_a_price_for_every_gaussian_statistic_of_added_units(name):
    options = (1.0,) if name == "second_moment" else ()
    rounds = ((Ask(Poisson(0.1), (QueryShape(name, 0 if options else 1, 1.0, options),)),),)
    LIMITS.check_plan(Plan(rounds), 3, 3)  # a dry run knows of no unit
    check_unit(Plan(rounds, ADDED), GAUSSIAN)
    for unit in (RECORD, Person()):
        with pytest.raises(Refused, match="no price for such batches"):
            check_unit(Plan(rounds, unit), GAUSSIAN)
    chosen = ((Ask(Poisson(0.1), (QueryShape("choice", 2, 1.0),)),),)
    with pytest.raises(Refused, match="no price for such batches"):
        LIMITS.check_plan(Plan(chosen, ADDED), 3, 3)


def test_a_unit_that_is_likely_drawn_tells_by_its_absence():
    """At a high rate the other order, an added unit, is the dearer one."""
    removed = loss._epsilon([(AddRemovePair(0.5, 0.95), 40)], 1e-3)
    added = loss._epsilon([(AddRemovePair(0.5, 0.95, added=True), 40)], 1e-3)
    assert loss.epsilon([(AddRemovePair(0.5, 0.95), 40)], 1e-3) == pytest.approx(max(removed, added))
    assert not math.isclose(removed, added, rel_tol=1e-3)
