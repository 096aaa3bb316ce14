"""Draws with replacement: the proven and the attainable bound around brute force, and published values."""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedsim.privacy import attainable, cost, gaussian, loss, verify
from fedsim.privacy.pairs import SubsampledPair, WithReplacementPair, multiplicities, profile
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Release

N, K, ROUNDS = 1238, 443, 35
DELTA = 1 / N**2
# The thesis's noise for a claimed epsilon: the proven bound and the attainable one.
TABLE = [
    (0.75, 0.714, 0.600),
    (1.5, 1.69, 1.30),
    (3.0, 4.71, 2.99),
    (6.0, 14.2, 8.13),
    (12.0, 47.6, 33.1),
    (18.0, None, 81.3),
]
X = np.linspace(-14.0, 14.0, 8_001)  # sums of smooth densities: exact but for the kink, 1e-6


def multiplier(claimed):
    sigma = math.sqrt(8 * ROUNDS * math.log(1 / DELTA)) / (N * claimed)
    return sigma * K / 2


def releases(batch, count=1, weight=1.0):
    return ((Release(batch, weight), count),)


@pytest.mark.parametrize(("claimed", "proven", "attained"), TABLE)
def test_known_costs_of_the_thesis_noise_are_reproduced(claimed, proven, attained):
    census, z = releases(WithReplacement(K / N), ROUNDS), multiplier(claimed)
    assert attainable.epsilon(census, N, z, DELTA) == pytest.approx(attained, rel=2.5e-3)
    if proven is not None:
        assert cost.epsilon(census, N, z, DELTA) == pytest.approx(proven, rel=8e-3)


@pytest.mark.parametrize(("n", "draws"), [(2, 1), (2, 2), (3, 2), (50, 50), (1238, 443), (100_000, 100_000)])
def test_multiplicities_are_binomial(n, draws):
    chance, more = multiplicities(n, draws)
    j = np.arange(len(chance))
    shown = stats.binom.pmf(j, draws, 1 / n) > 1e-200
    np.testing.assert_allclose(chance[shown], stats.binom.pmf(j, draws, 1 / n)[shown], rtol=1e-8)
    shown = stats.binom.sf(j, draws, 1 / n) > 1e-200
    np.testing.assert_allclose(more[shown], stats.binom.sf(j, draws, 1 / n)[shown], rtol=1e-8)
    assert np.all(np.diff(more) <= 0)


@cache
def exact(rows, draws, sigma, shift=0.0):
    """Density of the mean of `draws` terms drawn with replacement from `rows`, plus noise, on X."""
    means = [sum(drawn) / draws for drawn in product(rows, repeat=draws)]
    return sum(stats.norm.pdf(X, m - shift, sigma) for m in means) / len(means)


def true_profile(eps, n, draws, sigma):
    """The largest hockey-stick divergence over all data sets of terms in {-1, 0, 1} and replacements."""
    worst = 0.0
    for rest in product((-1, 0, 1), repeat=n - 1):
        for one, other in product((-1, 0, 1), repeat=2):
            p, q = (exact(tuple(sorted((*rest, own))), draws, sigma) for own in (one, other))
            worst = max(worst, float(np.maximum(p - math.exp(eps) * q, 0).sum() * (X[1] - X[0])))
    return worst


@pytest.mark.parametrize("eps", [-1.0, -0.2, 0.0, 0.3, 1.0])
def test_the_proven_profile_lies_above_brute_force_and_the_attainable_pair_below(eps):
    n, draws, z = 3, 2, 0.9
    sigma = z * 2 / draws
    worst = true_profile(eps, n, draws, sigma)
    assert profile(WithReplacementPair(1 / z, n, draws), eps) >= worst - 1e-9
    chance, _ = multiplicities(n, draws)
    base = stats.norm.pdf(X, 0, 1)
    mixed = sum(c * stats.norm.pdf(X, j / z, 1) for j, c in enumerate(chance))
    orders = [(mixed, base), (base, mixed)]
    both = [float(np.maximum(p - math.exp(eps) * q, 0).sum() * (X[1] - X[0])) for p, q in orders]
    alike, changed = exact((-1, -1, -1), draws, sigma), exact((-1, -1, 1), draws, sigma)
    data = [(changed, alike), (alike, changed)]
    reached = [float(np.maximum(p - math.exp(eps) * q, 0).sum() * (X[1] - X[0])) for p, q in data]
    assert both == pytest.approx(reached, abs=1e-5)
    assert 0.97 * worst < max(both) < worst + 1e-5


@pytest.mark.parametrize("delta", [1e-2, 1e-3])
def test_both_bounds_enclose_the_true_epsilon_of_one_release(delta):
    n, draws, z = 3, 2, 0.9
    low, high = 0.0, 20.0
    rows, other = (-1, -1, -1), (-1, -1, 1)
    p, q = exact(other, draws, z, -1), exact(rows, draws, z, -1)
    for _ in range(40):
        eps = (low + high) / 2
        needed = max(
            float(np.maximum(a - math.exp(eps) * b, 0).sum() * (X[1] - X[0])) for a, b in [(p, q), (q, p)]
        )
        low, high = (eps, high) if needed > delta else (low, eps)
    census = releases(WithReplacement(draws / n))
    below = attainable.epsilon(census, n, z, delta)
    assert below <= high + 1e-6
    assert below == pytest.approx(high, rel=2e-3)
    assert high <= cost.epsilon(census, n, z, delta)


@pytest.mark.parametrize("sigma", [2.5])
@pytest.mark.parametrize("count", [1, 20])
def test_the_lower_bound_is_just_below_dp_accountings_mixture(count, sigma):
    from dp_accounting.pld import privacy_loss_distribution as pld

    n, draws, delta = 40, 12, 1e-5
    chance = multiplicities(n, draws)[0]
    chance = chance[chance > 1e-20]
    pair = pld.from_mixture_gaussian_mechanism(
        sigma,
        [float(j) for j in range(len(chance))],
        list(chance / chance.sum()),
        value_discretization_interval=2e-3,
    )
    above = float(pair.self_compose(count).get_epsilon_for_delta(delta))
    census = releases(WithReplacement(draws / n), count)
    below = attainable.epsilon(census, n, sigma, delta)
    assert above - 4e-3 * max(1.0, above) <= below <= above
    assert below <= cost.epsilon(census, n, sigma, delta)


@pytest.mark.parametrize("draws", [1, 443])
def test_the_lower_bound_of_next_to_no_noise_is_that_of_more(draws):
    """Probabilities are no numbers then; the bound stays one, and does not fall to nothing."""
    census = releases(WithReplacement(draws / 1238), 35)
    bounds = [attainable.epsilon(census, 1238, z, 1e-6) for z in (1.0, 0.3, 0.05, 1e-3)]
    assert bounds == sorted(bounds)
    assert bounds[-1] > 100
    assert bounds[-1] <= cost.epsilon(census, 1238, 1e-3, 1e-6)


def test_two_kinds_of_releases_lie_just_above_dp_accountings_mixtures():
    """As in SPIDER: gradients, and differences at another noise and another batch size."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    n, delta, z = 40, 1e-5, 2.5
    kinds = [(12, 1.0, 5), (20, 0.5, 6)]  # draws, weight, count
    composed, census = None, []
    for draws, weight, count in kinds:
        chance = multiplicities(n, draws)[0]
        chance = chance[chance > 1e-20]
        pair = pld.from_mixture_gaussian_mechanism(
            z / weight,
            [float(j) for j in range(len(chance))],
            list(chance / chance.sum()),
            value_discretization_interval=4e-3,
        ).self_compose(count)
        composed = pair if composed is None else composed.compose(pair)
        census.append((Release(WithReplacement(draws / n), weight), count))
    needed = float(composed.get_epsilon_for_delta(delta))
    below, above = attainable.epsilon(tuple(census), n, z, delta), cost.epsilon(tuple(census), n, z, delta)
    assert needed - 1e-2 * needed <= below <= needed < above < 2 * needed


def test_one_draw_with_replacement_is_one_without():
    eps = np.linspace(-3, 6, 91)
    one, other = WithReplacementPair(1.3, 25, 1), SubsampledPair(1.3, 1 / 25)
    np.testing.assert_allclose(profile(one, eps), profile(other, eps), rtol=1e-12)
    for z in (0.5, 2.0, 1e-3):
        prices = [
            cost.epsilon(releases(batch, 9), 25, z, 1e-5)
            for batch in (WithReplacement(0.04), Subsample(0.04))
        ]
        assert prices[0] == pytest.approx(prices[1], rel=2e-4)


@pytest.mark.parametrize("fraction", [0.05, 0.4, 1.0])
def test_replacement_costs_more_than_a_subset_and_repetition_is_why(fraction):
    z, n = 2.0, 200
    subset = cost.epsilon(releases(Subsample(fraction), 10), n, z, 1e-6)
    assert cost.epsilon(releases(WithReplacement(fraction), 10), n, z, 1e-6) > 1.05 * subset


def test_the_rounding_of_rare_multiplicities_is_upwards_and_small():
    pair = WithReplacementPair(0.8, 100, 60)
    chance, _ = multiplicities(100, 60)
    eps = np.linspace(0, 9, 40)
    base = np.log1p(np.expm1(eps) / pair.eta)
    full = sum(c * gaussian.profile(base, j * 0.8) for j, c in enumerate(chance) if j)
    got = pair.profile(eps)
    assert np.all(got >= full * (1 - 1e-12))
    assert np.all(got <= full * (1 + 2e-3))


def test_its_discrete_losses_are_a_pair_of_distributions_above_every_multiplicity_together():
    pair = WithReplacementPair(1.0, 40, 9)
    losses = loss._discretise(pair, 0.05, 120, 1)
    mass, values = np.exp(losses.log_mass), losses.values()
    assert mass.sum() + losses.infinite == pytest.approx(1, abs=1e-12)
    assert mass @ np.exp(-values) + losses.infinite == pytest.approx(1, abs=1e-12)
    chance, _ = multiplicities(40, 9)
    for eps in np.linspace(-3, 3, 41):
        base = np.log1p(np.expm1(abs(eps)) / pair.eta)
        full = sum(c * float(gaussian.profile(base, j)) for j, c in enumerate(chance) if j)
        full = full if eps >= 0 else 1 - math.exp(eps) + math.exp(eps) * full
        above = losses.infinite + mass @ np.maximum(0, -np.expm1(eps - values))
        assert full - 1e-13 <= above <= full + 1e-2


def test_a_mixed_plan_agrees_with_dp_accountings_composition():
    census = (
        *releases(WithReplacement(0.2), 20),
        *releases(FULL, 3),
        *releases(Fresh(0.1), 4, weight=0.5),
        *releases(Subsample(0.1), 5),
        *releases(Poisson(0.1), 5),
    )
    spent = cost.epsilon(census, 500, 1.5, 1e-5)
    assert spent == pytest.approx(verify.epsilon(census, 500, 1.5, 1e-5), abs=2e-3)
    below = attainable.epsilon(census, 500, 1.5, 1e-5)
    parts = [attainable.epsilon((entry,), 500, 1.5, 1e-5) for entry in census]
    assert max(parts) < below < spent


def test_full_batches_are_attained_exactly_and_subsets_nearly():
    full = float(gaussian.epsilon(math.sqrt(6) / 3, 1e-5))
    assert attainable.epsilon(releases(FULL, 6), 100, 3.0, 1e-5) == pytest.approx(full, rel=1e-9)
    subset = releases(Subsample(0.2), 10)
    below, above = (f(subset, 100, 1.5, 1e-5) for f in (attainable.epsilon, cost.epsilon))
    assert 0.8 * above < below < above
    # With a full part beside it, the Gaussian goes through the grid: never above its exact price.
    mixed = (*releases(FULL, 6), *releases(Subsample(0.01), 1, weight=1e-6))
    assert full * (1 - 2e-3) <= attainable.epsilon(mixed, 100, 3.0, 1e-5) <= full


def test_edges():
    census = releases(WithReplacement(0.5), 4)
    assert cost.epsilon(census, 1, 2.0, 1e-5) == cost.epsilon(releases(FULL, 4), 1, 2.0, 1e-5)
    assert attainable.epsilon((), 10, 1.0, 1e-5) == attainable.epsilon(census, 10, 1e30, 1e-5) == 0
    assert attainable.epsilon(census, 10, 0.0, 1e-5) == math.inf
    assert attainable.epsilon(census, 100, 1e-3, 1e-5) >= 0
    # Hardly any noise and rare draws: all that one order may tell stands in one cell.
    rare = releases(WithReplacement(0.01))
    assert 200 < attainable.epsilon(rare, 1000, 0.05, 1e-6) < cost.epsilon(rare, 1000, 0.05, 1e-6)


@pytest.mark.parametrize("delta", [1e-20, 1e-60, 1e-140])
def test_a_tiny_delta_is_priced_below_the_gaussian_bound_and_above_the_attainable(delta):
    census = releases(WithReplacement(0.3), 5)
    bound, _, left = cost.compose(census, 50).gaussian_bound(delta)
    spent = cost.epsilon(census, 50, 8.0, delta)
    assert attainable.epsilon(census, 50, 8.0, delta) <= spent
    assert spent <= float(gaussian.epsilon(bound / 8, left)) * (1 + 1e-9)


@pytest.mark.parametrize("delta", [1e-150, 1e-200, 1e-300])
def test_a_delta_that_floating_point_cannot_compose_is_a_clear_error(delta):
    with pytest.raises(ValueError, match=r"delta: 1e-.*: in "):
        loss.epsilon([(SubsampledPair(1.0, 0.1), 3)], delta)
    with pytest.raises(ValueError, match=r"delta: 1e-.*: in "):
        attainable.epsilon(releases(WithReplacement(0.5), 2), 10, 1.0, delta)
