"""Lower bounds are below the truth as often as they say, and close to it."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from fedsim.privacy import cost, gaussian
from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.protocol.batch import FULL, Poisson, Subsample
from fedsim.protocol.plan import Release
from fedsim.testing.attacks import estimate
from fedsim.testing.attacks.estimate import Claim, assumption_free, curve, mean_difference, normality, rates

DELTA = 1e-5
REPEATS = 300
COVERED = int(stats.binom.isf(1e-6, REPEATS, 0.05))
"""More bounds above the truth than this are a fault: by chance at a rate of 1e-6."""


def _claim(epsilon: float, batch: object = FULL, rounds: int = 30, n: int = 100) -> tuple[Claim, float]:
    """A plan of such a price, and its noise multiplier."""
    census = ((Release(batch, 1.0), rounds),)
    (z,) = noise_multipliers(census, [Budget(n, epsilon, DELTA)], 1e6)
    return Claim(census, n, cost.epsilon(census, n, z, DELTA), DELTA), z


def _scores(rng: np.random.Generator, mu: float, runs: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(-mu / 2, 1, runs), rng.normal(mu / 2, 1, runs)


@pytest.mark.parametrize(("epsilon", "runs"), [(1.0, 40), (1.0, 3000), (4.0, 120), (4.0, 1000)])
def test_bounds_are_below_the_truth_at_their_confidence(epsilon, runs):
    rng, mu = np.random.default_rng(runs), float(gaussian.mu(epsilon, DELTA))
    above = np.zeros(2, dtype=int)
    for _ in range(REPEATS):
        first, second = _scores(rng, mu, runs)
        alpha, beta = rates(first, second, 0.95)
        # A plan of full batches has the Gaussian curve, on which a bound is that on mu (tested below).
        differential = float(stats.norm.isf(alpha) - stats.norm.ppf(beta))
        above += np.array([mean_difference(first, second, DELTA, 0.95) > epsilon, differential > mu])
        assert assumption_free(alpha, beta, DELTA) <= epsilon
    assert above.max() <= COVERED
    assert above[0] >= 4  # the mean difference is exact: one in twenty


@pytest.mark.parametrize("runs", [100, 1000, 10_000])
def test_where_nothing_can_be_told_nothing_is_attained(runs):
    """Two bounds on rates that add up to more than 1 prove nothing: no bound of 5 comes out of them."""
    claim, _ = _claim(1.0)
    rng = np.random.default_rng(runs)
    found = [estimate.bounds(*_scores(rng, 0.0, runs), claim) for _ in range(40)]
    assert sum(each.mean_difference > 0 for each in found) <= stats.binom.isf(1e-6, 40, 0.05)
    assert sum(each.plan_curve > 0 for each in found) <= stats.binom.isf(1e-6, 40, 0.05)
    assert max(each.mean_difference for each in found) < 1.5
    assert assumption_free(1.0, 1.0, DELTA) == assumption_free(0.6, 0.5, DELTA) == 0.0
    assert curve(1.0, 1.0, claim) == curve(0.6, 0.5, claim) == 0.0


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_the_curve_of_a_full_batch_is_gaussian_differential_privacy(mu):
    """mu >= Phi^-1(1 - alpha) - Phi^-1(beta): Dong, Roth and Su 2022."""
    claim, _ = _claim(1.0)
    alpha = beta = float(stats.norm.cdf(-mu / 2))
    expected = float(gaussian.epsilon(mu, DELTA))
    assert curve(alpha, beta, claim) == pytest.approx(expected, rel=5e-3)
    assert curve(alpha, beta, claim) <= expected * (1 + 1e-9)


@pytest.mark.parametrize("batch", [Subsample(0.1), Poisson(0.1)], ids=["subsample", "poisson"])
def test_the_curve_of_a_sampled_plan_is_that_of_its_dominating_pair(batch):
    """Rates that the plan just allows give back its price at the noise that they were made from."""
    claim, z = _claim(2.0, batch)
    slope = 0.01  # nearly where alpha = beta on the curve
    delta = brentq(lambda d: cost.epsilon(claim.census, claim.n, z, d) - slope, 0.05, 0.9, xtol=1e-4)
    alpha = (1 - delta) / (1 + math.exp(slope))  # beta = alpha: 1 - e^s alpha - beta = delta
    assert claim.epsilon * 0.93 <= curve(alpha, alpha, claim) <= claim.epsilon * (1 + 1e-3)


def test_the_assumption_free_bound_is_the_definition():
    assert assumption_free(0.1, 0.2, 0.05) == pytest.approx(math.log(0.75 / 0.1))
    assert assumption_free(0.2, 0.1, 0.05) == pytest.approx(math.log(0.75 / 0.1))


@pytest.mark.parametrize("runs", [20, 10_000])
@pytest.mark.parametrize("gap", [0.7, 3.0])
def test_the_bound_on_a_mean_difference_is_that_of_noncentral_t(runs, gap):
    """From below, by a hair: no noncentrality that it leaves out makes the t at hand as unlikely as 5 %."""
    scale, scores = math.sqrt(2 / runs), stats.norm.ppf((np.arange(runs) + 0.5) / runs)
    t = gap / math.sqrt(scores.var() * runs / (runs - 1)) / scale
    bound = float(gaussian.mu(mean_difference(scores, scores + gap, DELTA, 0.95), DELTA)) / scale
    low, high = (float(stats.nct.sf(t, 2 * runs - 2, bound * factor)) for factor in (0.9999, 1.0001))
    assert low <= 0.05 * (1 + 1e-6)
    assert high >= 0.05 * (1 - 1e-6)
    assert mean_difference(scores, scores + 0.01, DELTA, 0.95) == 0.0


def test_normality_is_rejected_as_often_as_it_says_and_where_it_fails():
    rng = np.random.default_rng(0)
    found = np.array([normality(*_scores(rng, 1.0, 500)) for _ in range(REPEATS)])
    assert (found < 0.05).sum() <= COVERED
    assert (found < 0.05).sum() >= stats.binom.ppf(1e-6, REPEATS, 0.04)
    assert normality(rng.exponential(size=300), rng.exponential(size=300)) < 1e-6
    assert normality(np.zeros(300), np.zeros(300)) == 0.0


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_as_many_runs_as_needed_bound_nine_tenths_of_a_claim_that_is_attained(epsilon):
    """Nine times in ten, says the docstring; fewer than 120 of 150 has a probability below 1e-3."""
    claim, z = _claim(epsilon)
    rng, mu = np.random.default_rng(1), math.sqrt(30) / z
    runs = estimate.runs_needed(claim, True)
    found = [mean_difference(*_scores(rng, mu, runs), DELTA, 0.95) for _ in range(150)]
    assert sum(value >= 0.9 * epsilon for value in found) >= 120


def test_a_claim_is_called_broken_where_it_is_and_not_where_it_is_just_kept():
    claim, z = _claim(1.0)
    rng, mu = np.random.default_rng(2), math.sqrt(30) / z
    assert estimate.violated([_scores(rng, mu, 5000)], claim, 1e-4) is None
    broken = estimate.violated([_scores(rng, mu, 5000), _scores(rng, 2 * mu, 5000)], claim, 1e-4)
    assert broken is not None
    assert claim.epsilon < broken <= float(gaussian.epsilon(2 * mu, DELTA))


def test_of_a_plan_with_a_choice_nothing_is_claimed_for_several_records():
    """Its epsilon is not that of a Gaussian release whose mu k records would multiply."""
    claims = [Claim(((Release(FULL, 1.0, drawn=drawn), 1),), 100, 1.0, DELTA) for drawn in (False, True)]
    gaussian_plan, choice = (estimate.worth(claim, 5).epsilon for claim in claims)
    assert gaussian_plan < math.inf == choice
