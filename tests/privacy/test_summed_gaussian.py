"""Noise shares of a sum: what is drawn, how far sums of it are from Gaussian, and what it costs."""

import itertools
from math import ceil, exp, inf, pi, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import FALSE_ALARM
from support.refusals import refused
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian, grid
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.grid import MAX_RECORDS, STEPS
from fedsim.privacy.shuffled_binomial import ShuffledBinomial
from fedsim.privacy.sum_mechanism import SharedNoise, honest_silos
from fedsim.privacy.summed_gaussian import LARGEST_NOISE, SummedGaussian, sum_distance
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.plan import Census, Release
from fedsim.protocol.statistics import Extent

DELTA = 1e-6
ROUNDS: Census = ((Release(FULL, 1.0), 35),)


def contributions(mechanism: SummedGaussian, total: Tensor, z: float, ratio: float = 1.0) -> np.ndarray:
    """A copy of `total` (silos, d), clip 1, after the mechanism."""
    rows, streams = np.empty(total.shape), [np.random.default_rng(i) for i in range(len(total))]

    def noise() -> Tensor:
        mechanism.fill(streams, rows)
        return torch.from_numpy(rows)

    sent = total.clone()
    mechanism.perturb(sent, ratio, torch.full((len(total), 1), z, dtype=torch.float64), 2.0, 1.0, noise)
    return sent.numpy()


def is_gaussian(values: np.ndarray, sigma: float) -> bool:
    """Whether variance and shape are those of N(0, sigma^2)."""
    variance = (values**2).mean() / sigma**2
    shape = stats.kstest(values / sigma, "norm").pvalue
    return bool(
        shape > FALSE_ALARM and abs(variance - 1) < stats.norm.isf(FALSE_ALARM / 2) * sqrt(2 / len(values))
    )


@pytest.mark.parametrize(("exact", "d", "wrong"), [(True, 2_000, 0.2), (False, 40_000, 0.03)])
@pytest.mark.parametrize("honest", [1.0, 0.5, 0.3])
def test_a_sum_of_the_least_honest_silos_has_the_noise_that_was_priced(
    exact: bool, d: int, wrong: float, honest: float
) -> None:
    """Noise wrong by that share would be seen but for 1e-5: the variance is off by over 8 deviations."""
    silos, z = 8, 1.7
    mechanism = SummedGaussian(Extent(d, d), silos, honest, exact=exact)
    sent = contributions(mechanism, torch.zeros(silos, d, dtype=torch.float64), z, ratio=0.5)
    assert np.array_equal(sent, np.rint(sent))
    total = sent[: ceil(honest * silos)].sum(axis=0)
    sigma = 0.5 * z * mechanism.sensitivity()
    assert is_gaussian(total, sigma)
    assert not is_gaussian(total, (1 + wrong) * sigma)
    assert not is_gaussian(total, (1 - wrong) * sigma)
    assert is_gaussian(sent[0], 0.5 * mechanism.colluding(z) * mechanism.sensitivity())
    assert abs(np.corrcoef(sent)[0, 1:]).max() < stats.norm.isf(FALSE_ALARM / 16) / sqrt(d)


def test_aggregators_add_a_full_share_each_and_silos_none() -> None:
    mechanism = SummedGaussian(Extent(6, 6), 100, 0.1, noise_by="aggregators")
    total = torch.linspace(-1, 1, 6, dtype=torch.float64)[None]
    assert np.array_equal(contributions(mechanism, total, 3.0), np.rint(total.numpy() * STEPS))
    assert mechanism.aggregators_noise(6.0, 6, 2.0) == 6.0 * mechanism.sensitivity()
    assert SummedGaussian(Extent(6, 6), 100, 0.1).aggregators_noise(6.0, 6, 2.0) == 0
    assert mechanism.colluding(3.0) == 0
    assert mechanism.colluding_epsilons(ROUNDS, [(50, 3.0, DELTA)]) == [inf]


def test_noise_is_no_function_of_who_else_sends() -> None:
    """A lone silo is not honest in fractions: it has all of the noise."""
    assert SummedGaussian(Extent(3, 3), 2, 0.1).sharers == 1
    assert SummedGaussian(Extent(3, 3), 10, 0.25).sharers == 3


def test_no_more_silos_are_honest_than_is_said_and_none_fewer() -> None:
    """Of every share of up to four digits, written as a decimal number, of every pool up to 300."""
    for share, silos in itertools.product(range(1, 10_001, 7), range(1, 301)):
        assert honest_silos(silos, share / 10_000) == -(-share * silos // 10_000)
    assert ceil(0.07 * 100) == 8  # what floating point makes of 7


def rounding_dimension(share: float) -> int:
    """A d for which a coordinate of two clips is an integer and hardly more: rounding adds almost a step."""
    return next(d for d in range(1000, 5000) if 0 < (2 * share * STEPS / sqrt(d)) % 1 < 0.01)


@pytest.mark.parametrize("share", [1.0, 0.25, 1 / 64])
def test_a_replaced_record_moves_a_contribution_by_no_more_than_its_sensitivity(share: float) -> None:
    """Worst sums: all coordinates round towards each other in one, and apart in the other."""
    d = rounding_dimension(share)
    mechanism = SummedGaussian(Extent(d, d), 5, 1.0, noise_by="aggregators")
    apart = 2 * share * STEPS / sqrt(d)
    low = torch.full((1, d), 0.5 - (apart % 1) / 2, dtype=torch.float64)
    for drift in (1 + 1.2e-4, 1.0):
        high = low + apart * drift
        moved = np.linalg.norm(
            contributions(mechanism, high / STEPS, 1.0) - contributions(mechanism, low / STEPS, 1.0)
        )
        assert moved <= grid.sensitivity(d, 2.0, share)
        assert mechanism.effective(1.0, share) <= mechanism.sensitivity() / moved
    assert moved > 2 * share * STEPS + 0.9 * sqrt(d)


SHARED = [SummedGaussian(Extent(1000, 1000), 5, 1.0), ShuffledBinomial(1000, 5, 1.0, 64)]


@pytest.mark.parametrize("mechanism", SHARED, ids=lambda mechanism: mechanism.name)
@pytest.mark.parametrize("r", [1.0, 0.5, 0.01, 0.0])
def test_the_common_multiplier_and_a_silos_own_are_inverse(mechanism: SharedNoise, r: float) -> None:
    assert mechanism.common(mechanism.effective(2.0, r), r) == pytest.approx(2.0, rel=1e-14)
    assert mechanism.effective(2.0, r) == mechanism.effective(2.0, max(r, mechanism.least)) >= 2.0
    noise = 2.0 * mechanism.sensitivity()
    assert mechanism.effective(2.0, 0.5) == noise / mechanism.sensitivity(0.5)
    assert SHARED[0].sensitivity(0.5) == grid.sensitivity(1000, 2.0, 0.5)


def convolved(sigma: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Laws on the same integers: a sum of discrete Gaussians of scale sigma, and one of its variance."""
    reach = int(14 * sigma * sqrt(count)) + 20
    k = np.arange(-reach, reach + 1)
    one = np.exp(-(k**2) / (2 * sigma**2))
    law = one / one.sum()
    for _ in range(count - 1):
        law = np.convolve(law, one / one.sum(), mode="same")
    whole = np.exp(-(k**2) / (2 * sigma**2 * count))
    return law, whole / whole.sum()


@pytest.mark.parametrize(("sigma", "count"), [(0.5, 2), (0.55, 3), (0.6, 2), (0.7, 5), (0.8, 10), (1.0, 3)])
def test_how_far_a_sum_of_discrete_gaussians_is_from_one(sigma: float, count: int) -> None:
    """Visible at small scales, by direct convolution; the bound holds, and is no idle one."""
    law, whole = convolved(sigma, count)
    apart = float(np.abs(law - whole).sum() / 2)
    assert apart <= sum_distance(sigma, count)
    assert count > 2 or sum_distance(sigma, count) < 5 * apart
    x = exp(-((pi * sigma) ** 2))
    ripple = 2 * x / (1 - x)
    seen = whole > 1e-9
    close = np.abs(law[seen] / whole[seen] - 1).max()
    if ripple < 1:
        assert close <= np.expm1(2 * (count - 1) * np.arctanh(ripple)) + 1e-6


def test_where_sums_are_priced_the_distance_is_nothing() -> None:
    assert sum_distance(10.0, 10**6) < 1e-300
    assert sum_distance(0.3, 2) == 1
    assert sum_distance(0.3, 1) == 0


def test_rounded_normal_numbers_are_close_to_the_discrete_gaussian() -> None:
    """What a simulation draws: H 6e-4 / sigma^4 for a sum of H shares, from 10 steps a share."""
    for share, count in ((10.0, 2), (10.0, 8), (20.0, 3)):
        s = sqrt(share**2 - 1 / 12)
        k = np.arange(-int(12 * share * sqrt(count)), int(12 * share * sqrt(count)) + 1)
        cell = stats.norm.cdf((k + 0.5) / s) - stats.norm.cdf((k - 0.5) / s)
        own = np.exp(-(k**2) / (2 * share**2))
        rounded, discrete = cell, own / own.sum()
        for _ in range(count - 1):
            rounded = np.convolve(rounded, cell, mode="same")
            discrete = np.convolve(discrete, own / own.sum(), mode="same")
        apart = np.abs(rounded - discrete).sum() / 2
        assert apart <= count * 6e-4 / (share**2 * count) ** 2 + 1e-12


@pytest.mark.parametrize("dimension", [50, 1000, 100_000])
@pytest.mark.parametrize("rounds", [1, 35])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_noise_is_at_most_a_thousandth_more_than_central(dimension: int, rounds: int, epsilon: float) -> None:
    census = ((Release(FULL, 1.0), rounds),)
    mechanism = SummedGaussian(Extent(dimension, dimension), 1000, 1.0)
    (z,) = mechanism.noise_multipliers(census, [Budget(50, epsilon, DELTA)], 1e4)
    central = sqrt(rounds) / float(gaussian.mu(epsilon, DELTA))
    assert central < z * mechanism.sensitivity() / (2 * STEPS) <= 1.001 * central
    assert mechanism.epsilons(census, [(50, z, DELTA)])[0] <= epsilon


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 16.0])
def test_the_price_pays_for_every_distance(epsilon: float) -> None:
    """h(eps; mu) + (1 + e^eps) T <= delta with T counted here, for a silo of the least share."""
    mechanism = SummedGaussian(Extent(100_000, 100_000), 1000, 1.0)
    (z,) = mechanism.noise_multipliers(ROUNDS, [Budget(50, epsilon, DELTA)], 1e4)
    (spent,) = mechanism.epsilons(ROUNDS, [(50, z, DELTA)])
    sigma = z * grid.sensitivity(100_000, 2.0, mechanism.least)
    share = sigma / sqrt(1000)
    distance = 35 * 100_000 * (5e-4 / sigma**4 + sum_distance(share, 1000) + 1e-200)
    assert float(gaussian.profile(spent, sqrt(35) / z)) + (1 + exp(spent)) * distance <= DELTA
    assert mechanism.distance(ROUNDS, z) == pytest.approx(distance)


def test_no_number_may_pass_what_is_exact_in_float64() -> None:
    """Chances that a party's noise, or that of 2^20 of them, passes 2^51: below 1e-221, by Hoeffding."""
    deviations = 2.0**51 / (LARGEST_NOISE * 2**10)
    assert -(deviations**2) / 2 + np.log(2) < np.log(1e-221)
    mechanism = SummedGaussian(Extent(2, 2), 1, 1.0)
    with pytest.raises(Refused, match="steps"):
        contributions(mechanism, torch.zeros(1, 2, dtype=torch.float64), 1e4, ratio=10.0)
    huge = torch.tensor([[torch.inf, torch.nan]], dtype=torch.float64)
    quiet = SummedGaussian(Extent(2, 2), 1, 1.0, noise_by="aggregators")
    assert contributions(quiet, huge, 1.0).tolist() == [[2.0**41, 0.0]]


def test_colluding_aggregators_leave_a_silo_its_own_share() -> None:
    """The exact Gaussian at s_i where the distance can be paid, Renyi divergence beyond: never below it."""
    for silos, z in ((4, 40.0), (1000, 25.0), (1000, 5.0)):
        mechanism = SummedGaussian(Extent(50, 50), silos, 1.0)
        (spent,) = mechanism.colluding_epsilons(ROUNDS, [(50, z, DELTA)])
        truth = cost.epsilon(ROUNDS, 50, z / sqrt(silos), DELTA)
        assert truth <= spent <= 1.1 * truth
    sampled: Census = ((Release(Subsample(0.1), 1.0), 5),)
    mechanism = SummedGaussian(Extent(50, 50), 1000, 1.0)
    (spent,) = mechanism.colluding_epsilons(sampled, [(50, 0.5, DELTA)])
    assert cost.epsilon(sampled, 50, 0.5 / sqrt(1000), DELTA) <= spent < inf
    assert mechanism.colluding_epsilons((), [(50, 0.5, DELTA)]) == [0.0]


def test_what_cannot_be_is_refused() -> None:
    with refused("honest_fraction", 0.0):
        SummedGaussian(Extent(5, 5), 3, 0.0)
    with refused("pool_min", 0):
        SummedGaussian(Extent(5, 5), 0, 1.0)
    with pytest.raises(ValueError, match="of 8 numbers"):
        contributions(SummedGaussian(Extent(7, 7), 1, 1.0), torch.zeros(1, 8, dtype=torch.float64), 1.0)
    with pytest.raises(Refused, match="1,000,001"):
        SummedGaussian(Extent(5, 5), 3, 1.0).epsilons(ROUNDS, [(MAX_RECORDS + 1, 1.0, DELTA)])
    assert SummedGaussian(Extent(5, 5), 3, 1.0).epsilons(ROUNDS, [(50, 0.0, DELTA)]) == [inf]
