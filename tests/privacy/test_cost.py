"""The guarantee of a plan: published values, the algebra of composition, edges."""

import math
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian, loss, verify
from fedsim.privacy.pairs import GaussianPair, PoissonPair, SubsampledPair, profile
from fedsim.protocol.batch import FULL, Fresh, Part, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Release

N, K, ROUNDS = 1238, 443, 35
DELTA = 1 / N**2
# The thesis's noise for a claimed epsilon; what it costs without replacement, Poisson, full batch. Losses of
# both signs count: one-sided grids give 0.737 or 0.594 in place of 0.5978.
TABLE = [
    (0.75, 0.5978, 0.585, 0.585),
    (1.5, 1.2877, 1.23, 1.23),
    (3.0, 2.8798, 2.61, 2.62),
    (6.0, 6.9815, 5.64, 5.69),
    (12.0, 19.650, 12.5, 12.9),
    (18.0, 39.218, 20.3, 21.4),
]
SAMPLED = [Subsample(0.1), Subsample(0.36), WithReplacement(0.1), Poisson(0.1), Poisson(0.36)]
BATCHES = st.sampled_from([FULL, *SAMPLED, Fresh(0.002)])


def multiplier(claimed, batch_size):
    """z of the thesis's noise on a mean of `batch_size` terms, C = L."""
    sigma = math.sqrt(8 * ROUNDS * math.log(1 / DELTA)) / (N * claimed)
    return sigma * batch_size / 2


def releases(batch, count=1, weight=1.0):
    return (Release(batch, weight), count)


@pytest.mark.parametrize(("claimed", "without", "poisson", "full"), TABLE)
def test_known_costs_of_the_thesis_noise_are_reproduced(claimed, without, poisson, full):
    fraction = K / N
    small, large = multiplier(claimed, K), multiplier(claimed, N)
    got = cost.epsilon((releases(Subsample(fraction), ROUNDS),), N, small, DELTA)
    assert got == pytest.approx(without, rel=2e-4)  # known to five digits
    got = cost.epsilon((releases(Poisson(fraction), ROUNDS),), N, small, DELTA)
    assert got == pytest.approx(poisson, rel=0.01)
    got = cost.epsilon((releases(FULL, ROUNDS),), N, large, DELTA)
    assert got == pytest.approx(full, rel=0.01)


@pytest.mark.parametrize("batch", [Subsample(0.25), Poisson(0.25)])
def test_one_sampled_release_has_the_epsilon_of_its_profile(batch):
    z, delta = 0.8, 1e-4
    kind = SubsampledPair if isinstance(batch, Subsample) else PoissonPair
    eps = cost.epsilon((releases(batch),), 1000, z, delta)
    assert profile(kind(1 / z, 0.25), eps) <= delta
    assert profile(kind(1 / z, 0.25), eps - 5e-4) > delta


@given(BATCHES, st.integers(1, 12), st.floats(0.5, 10))
@settings(max_examples=40)
def test_equal_entries_add_up(batch, count, z):
    apart = tuple(releases(batch) for _ in range(count))
    together = (releases(batch, count),)
    assert cost.epsilon(apart, N, z, DELTA) == cost.epsilon(together, N, z, DELTA)


@given(BATCHES, st.integers(1, 40), st.floats(0.5, 10), st.floats(1e-9, 1e-2))
@settings(max_examples=60)
def test_cost_falls_with_noise_and_delta_and_grows_with_count(batch, count, z, delta):
    def at(count, z, delta):
        return cost.epsilon((releases(batch, count),), N, z, delta)

    here, slack = at(count, z, delta), 1e-4
    assert at(count, 1.2 * z, delta) <= here + slack
    assert at(count, z, 2 * delta) <= here + slack
    if isinstance(batch, Fresh):
        assert at(count + 1, z, delta) == here
    else:
        assert at(count + 1, z, delta) >= here - slack
    if here > 0.05:
        assert at(count, 1.2 * z, delta) < here
        assert at(count, z, 2 * delta) < here


@given(st.lists(st.floats(0.1, 3), min_size=1, max_size=6), st.floats(0.5, 5))
def test_full_batches_add_mu_squared(weights, z):
    census = tuple(releases(FULL, 2, weight) for weight in weights)
    mu = math.sqrt(sum(2 * weight**2 for weight in weights)) / z
    assert cost.epsilon(census, N, z, DELTA) == pytest.approx(float(gaussian.epsilon(mu, DELTA)), rel=1e-9)


def test_fresh_costs_the_max_not_the_sum():
    census = (releases(Fresh(0.1), 5), releases(Fresh(0.1), 2, weight=2.0), releases(Fresh(0.05), 3))
    assert cost.epsilon(census, N, 1.5, DELTA) == pytest.approx(float(gaussian.epsilon(2 / 1.5, DELTA)))


def test_fresh_and_full_are_one_gaussian():
    census = (releases(Fresh(0.1), 5, weight=1.5), releases(FULL, 4))
    mu = math.sqrt(4 + 1.5**2) / 3
    assert cost.epsilon(census, N, 3.0, DELTA) == pytest.approx(float(gaussian.epsilon(mu, DELTA)))


def test_fresh_batches_that_cannot_be_disjoint_are_refused():
    assert cost.epsilon((releases(Fresh(0.1), 10),), 100, 1.0, 1e-4) > 0
    with pytest.raises(Refused, match=r"110 fresh units, the silo has 100"):
        cost.epsilon((releases(Fresh(0.1), 11),), 100, 1.0, 1e-4)


def test_fresh_batches_of_one_record_at_least_are_counted_as_such():
    with pytest.raises(Refused, match="20 fresh units, the silo has 10"):
        cost.epsilon((releases(Fresh(0.01), 20),), 10, 1.0, 1e-4)


def test_a_part_of_all_records_costs_what_full_batches_do():
    part, full = ((releases(batch, 7, weight=0.8),) for batch in (Part(0, 1), FULL))
    assert cost.epsilon(part, N, 2.0, DELTA) == cost.epsilon(full, N, 2.0, DELTA)


def test_disjoint_parts_asked_once_cost_what_fresh_batches_do():
    parts = tuple(releases(Part(k / 8, (k + 1) / 8)) for k in range(8))
    assert cost.epsilon(parts, N, 2.0, DELTA) == cost.epsilon((releases(Fresh(1 / 8), 8),), N, 2.0, DELTA)


def test_releases_add_within_a_part_and_the_largest_part_counts():
    census = (releases(Part(0, 0.3), 4), releases(Part(0.3, 1), 2, weight=1.5), releases(FULL, 3))
    mu = math.sqrt(max(4, 2 * 1.5**2) + 3) / 2.0
    assert cost.epsilon(census, N, 2.0, DELTA) == pytest.approx(float(gaussian.epsilon(mu, DELTA)), rel=1e-9)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 0.5)])
def test_the_price_bounds_the_sum_over_permutations(weights):
    """Four records, two parts of two asked 3 and 5 times: the mean over the 24 orders of the profile of what
    record 0 then meets; the same where all parts cost the same.
    """
    parts, counts = (Part(0, 0.5), Part(0.5, 1)), (3, 5)
    weights = (weights[0] / math.sqrt(3), weights[1] / math.sqrt(5))
    census = tuple(releases(part, count, w) for part, count, w in zip(parts, counts, weights, strict=True))
    z, epsilon = 1.7, 0.8
    priced = profile(GaussianPair(cost.compose(census, 4).weight / z), epsilon)
    mean = 0.0
    for order in permutations(range(4)):
        mu_sq = 0.0
        for part, count, weight in zip(parts, counts, weights, strict=True):
            start, stop = part.bounds(4)
            mu_sq += count * (weight / z) ** 2 if 0 in order[start:stop] else 0.0
        mean += profile(GaussianPair(math.sqrt(mu_sq)), epsilon) / 24
    if weights[0] * math.sqrt(3) == weights[1] * math.sqrt(5):
        assert mean == pytest.approx(priced, rel=1e-9)
    assert 0 < mean <= priced * (1 + 1e-9)


@pytest.mark.parametrize("batch", [Subsample(0.2), Poisson(0.2)])
def test_mixed_plan_agrees_with_dp_accountings_composition(batch):
    z, delta = 1.2, 1e-5
    census = (releases(batch, 20), releases(FULL, 3), releases(Fresh(0.1), 4, weight=0.5))
    kind = SubsampledPair if isinstance(batch, Subsample) else PoissonPair
    expected = verify.composed([(kind(1 / z, 0.2), 20), (GaussianPair(math.sqrt(3 + 0.25) / z), 1)], delta)
    assert verify.epsilon(census, 1000, z, delta) == pytest.approx(expected, abs=1e-9)
    assert cost.epsilon(census, 1000, z, delta) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("batch", [Subsample(0.2), Poisson(0.2)])
def test_different_weights_on_one_sampler_do_not_merge(batch):
    z = 2.0
    kind = SubsampledPair if isinstance(batch, Subsample) else PoissonPair
    census = (releases(batch, 10, weight=1.0), releases(batch, 10, weight=2.0))
    expected = loss.epsilon([(kind(1 / z, 0.2), 10), (kind(2 / z, 0.2), 10)], 1e-5)
    got = cost.epsilon(census, 1000, z, 1e-5)
    assert got == expected
    assert got > cost.epsilon((releases(batch, 20),), 1000, z, 1e-5) + 0.1


@pytest.mark.parametrize("batch", [Subsample(1.0), Poisson(1.0), Subsample(0.999)])
def test_rate_one_is_full(batch):
    # 0.999 of 100 records rounds to all of them.
    assert cost.epsilon((releases(batch, 7),), 100, 3.0, 1e-4) == cost.epsilon(
        (releases(FULL, 7),), 100, 3.0, 1e-4
    )


@pytest.mark.parametrize("batch", [Subsample(0.999), Poisson(0.999)])
def test_rate_just_below_one_is_just_below_full(batch):
    sampled = cost.epsilon((releases(batch, 7),), 1000, 3.0, 1e-4)
    full = cost.epsilon((releases(FULL, 7),), 1000, 3.0, 1e-4)
    assert 0.99 * full < sampled <= full + 2e-4


@pytest.mark.parametrize("batch", [FULL, Fresh(0.1), Subsample(0.2), WithReplacement(0.2), Poisson(0.2)])
def test_edges(batch):
    census = (releases(batch, 3),)
    assert cost.epsilon((), 100, 0.0, 1e-4) == 0
    assert cost.epsilon(((Release(batch, 1.0), 0),), 100, 0.0, 1e-4) == 0
    assert cost.epsilon(census, 100, 0.0, 1e-4) == math.inf
    assert cost.epsilon(census, 100, math.inf, 1e-4) == 0
    assert cost.epsilon(census, 100, 1e30, 1e-4) == 0
    assert 1e5 < cost.epsilon(census, 100, 1e-3, 1e-4) < math.inf


@pytest.mark.parametrize(
    ("z", "delta", "n"), [(-1.0, 1e-4, 10), (math.nan, 1e-4, 10), (1.0, 0.0, 10), (1.0, 1e-4, 0)]
)
def test_nonsense_is_an_error(z, delta, n):
    with pytest.raises(ValueError, match="is not"):
        cost.epsilon((releases(FULL),), n, z, delta)


@pytest.mark.parametrize("batch", [Subsample(0.2), Poisson(0.001)])
@pytest.mark.parametrize("z", [1e-4, 4.9e-3, 5.1e-3, 0.02, 0.5, 50.0, 1e4])
def test_a_mixed_plan_costs_between_its_gaussian_part_and_full_batches(batch, z):
    census = (releases(batch, 60), releases(FULL, 3, weight=2.0))
    least = float(gaussian.epsilon(math.sqrt(12) / z, 1e-6))
    most = float(gaussian.epsilon(math.sqrt(72) / z, 1e-6))
    assert least <= cost.epsilon(census, 1000, z, 1e-6) <= most


def test_the_sampling_rate_is_that_of_the_records_drawn():
    """One record of ten is a rate of 0.1, whatever smaller fraction was asked for."""
    asked, drawn = (((Release(Subsample(fraction), 1.0), 20),) for fraction in (0.01, 0.1))
    assert cost.epsilon(asked, 10, 1.0, 1e-5) == cost.epsilon(drawn, 10, 1.0, 1e-5)
    assert cost.epsilon(asked, 1000, 1.0, 1e-5) < cost.epsilon(drawn, 1000, 1.0, 1e-5)
