"""Fair bits: what is drawn, the protocol in bits against the total, the sensitivity and the price."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import gammaln, logsumexp
from support import bit_messages
from support.cpsgd import cpsgd_epsilon
from support.helpers import FALSE_ALARM
from support.refusals import refused
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.gaussian import renyi_epsilon
from fedsim.privacy.shuffled_binomial import ShuffledBinomial, advised_steps, excess
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Census, Release

DELTA = 1e-6
ONCE: Census = ((Release(FULL, 1.0), 1),)
ROUNDS: Census = ((Release(FULL, 1.0), 35),)


def multiplier(mechanism: ShuffledBinomial, bits: int) -> float:
    """z at which a silo adds so many bits."""
    return sqrt(bits * mechanism.sharers / 4) / mechanism.sensitivity() * (1 - 1e-12)


def contributions(mechanism: ShuffledBinomial, total: Tensor, bits: int, seed: int = 0) -> np.ndarray:
    """A copy of `total` (silos, d), clip 1, after the mechanism."""
    rows = np.random.default_rng(seed).random(total.shape)
    sent, z = total.clone(), multiplier(mechanism, bits)
    multipliers = torch.full((len(total), 1), z, dtype=torch.float64)
    mechanism.perturb(sent, 1.0, multipliers, 2.0, 1.0, lambda: torch.from_numpy(rows))
    return sent.numpy()


@pytest.mark.parametrize("bits", [2, 6, 40, 10_000])
def test_noise_is_that_many_fair_bits(bits: int) -> None:
    """Cells by chi-squared; bits of another number or chance would be seen."""
    d = 60_000
    noise = contributions(ShuffledBinomial(d, 1, 1.0, 16), torch.zeros(1, d, dtype=torch.float64), bits)[0]
    assert fits(noise, bits, 0.5)
    assert not fits(noise, bits, 0.55)
    assert not fits(noise, 2 * bits, 0.5)


def fits(noise: np.ndarray, bits: int, chance: float) -> bool:
    """Whether centred counts are Bin(bits, chance), in cells that are expected often."""
    ones = (noise + bits / 2).astype(int)
    edges = np.unique(stats.binom.ppf(np.linspace(0.01, 0.99, 30), bits, chance))
    wanted = np.diff(np.concatenate([[0], stats.binom.cdf(edges, bits, chance), [1]])) * len(ones)
    found = np.bincount(np.searchsorted(edges, ones), minlength=len(wanted))
    often = wanted > 5
    statistic = float(((found - wanted)[often] ** 2 / wanted[often]).sum())
    return bool(stats.chi2.sf(statistic, often.sum() - 1) > FALSE_ALARM and found[~often].sum() < 40)


def test_rounding_is_unbiased_and_apart_from_the_bits() -> None:
    d, g = 60_000, 16
    total = torch.full((1, d), 0.3 / g, dtype=torch.float64)
    for bits in (2, 10_000):
        sent = contributions(ShuffledBinomial(d, 1, 1.0, g), total, bits)[0]
        noise = contributions(ShuffledBinomial(d, 1, 1.0, g), torch.zeros_like(total), bits)[0]
        up = sent - noise
        assert set(up.tolist()) == {0.0, 1.0}
        assert stats.binomtest(int(up.sum()), d, 0.3).pvalue > FALSE_ALARM
        assert abs(np.corrcoef(up, noise)[0, 1]) < stats.norm.isf(FALSE_ALARM / 2) / sqrt(d)


SHIFTS, COORDINATES = np.full(3, 8), 40_000
VALUES = np.array([[0.7], [-0.35], [0.1]])  # of three silos, in clips


def totals(fair: int) -> np.ndarray:
    """Sums over the silos of what the mechanism adds up."""
    mechanism = ShuffledBinomial(COORDINATES, 3, 1.0, 8)
    total = torch.from_numpy(np.repeat(VALUES, COORDINATES, axis=1))
    return np.asarray(contributions(mechanism, total, fair, seed=1).sum(axis=0))


def counted(fair: int, chance: float) -> np.ndarray:
    """The same from messages, whose last silo's fair bits are ones with `chance`."""
    rng = np.random.default_rng(2)
    steps = np.repeat(8 * VALUES, COORDINATES, axis=1)
    first = bit_messages.shuffled(steps[:2], SHIFTS[:2], fair, rng)
    last = bit_messages.shuffled(steps[2:], SHIFTS[2:], 0, rng)
    bits = (rng.random((fair, COORDINATES)) < chance).astype(np.uint8)
    return bit_messages.total(np.concatenate([first, last, bits]), SHIFTS, fair)


def one_law(left: np.ndarray, right: np.ndarray) -> bool:
    """Two samples of integers, by the chi-squared test of a table; rare values are left out."""
    values = np.union1d(left, right)
    table = np.array([[(sample == value).sum() for value in values] for sample in (left, right)])
    return bool(stats.chi2_contingency(table[:, table.sum(axis=0) > 10]).pvalue > FALSE_ALARM)


def test_the_protocol_in_bits_and_the_total_have_one_law() -> None:
    """40,000 coordinates of three silos with four fair bits each.

    Power: bits of one silo that are ones with chance 0.53 move the mean by 0.12, nine standard errors of the
    difference; two bits in place of four take a fifth off the variance or more, over twenty of them.
    """
    ours = totals(4)
    steps = np.repeat(8 * VALUES, COORDINATES, axis=1)
    messages = bit_messages.shuffled(steps, SHIFTS, 4, np.random.default_rng(3))
    assert messages.shape == (3 * (16 + 4), COORDINATES)
    assert one_law(ours, bit_messages.total(messages, SHIFTS, 4))
    assert one_law(ours, counted(4, 0.5))
    assert not one_law(ours, counted(4, 0.53))
    assert not one_law(ours, counted(2, 0.5))
    assert not one_law(ours, totals(6))


def test_messages_are_in_random_order_and_centred_by_all_silos() -> None:
    """Re-centring by one silo's shift, as printed, would be off by the others'."""
    rng, shifts = np.random.default_rng(0), np.array([8, 4, 2])
    steps = np.array([[8.0, -8.0], [4.0, -4.0], [2.0, -2.0]])
    messages = bit_messages.shuffled(steps, shifts, 0, rng)
    assert bit_messages.total(messages, shifts, 0).tolist() == [14.0, -14.0]
    first = [
        bit_messages.shuffled(np.zeros((3, 1)), shifts, 0, np.random.default_rng(i))[0, 0] for i in range(400)
    ]
    assert stats.binomtest(int(np.sum(first)), 400, 0.5).pvalue > FALSE_ALARM


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_a_replaced_record_moves_rounded_sums_by_no_more_than_the_sensitivity(share: float) -> None:
    """Random and aligned differences of two clips; a data set and its neighbour have the same thresholds."""
    g, rng = 16, np.random.default_rng(0)
    for d in (1, 2, 50):
        mechanism = ShuffledBinomial(d, 1, 1.0, g)
        low = rng.uniform(-5, 5, size=(4000, d))
        direction = rng.normal(size=(4000, d)) if d < 50 else rng.choice([-1.0, 1.0], size=(4000, d))
        high = low + 2 * share * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        thresholds = rng.random((4000, d))
        moved = np.floor(high * g + thresholds) - np.floor(low * g + thresholds)
        assert np.linalg.norm(moved, axis=1).max() <= mechanism.sensitivity(share)
        assert np.abs(moved).max() <= 2 * g * share + 1
        assert np.linalg.norm(moved, axis=1).max() >= 2 * g * share


@pytest.mark.parametrize(
    ("dimension", "rounds", "most"), [(50, 1, 1.5), (1000, 1, 1.5), (50, 35, 1.3), (1000, 35, 1.3)]
)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_noise_beside_the_central_gaussians(dimension: int, rounds: int, most: float, epsilon: float) -> None:
    """What a thousand silos' bits add up to, their rounding included."""
    census = ((Release(FULL, 1.0), rounds),)
    mechanism = ShuffledBinomial(dimension, 1000, 1.0, advised_steps(dimension))
    (z,) = mechanism.noise_multipliers(census, [Budget(50, epsilon, DELTA)], 1e4)
    noise = sqrt(1000 * mechanism.bits(1.0, z) / 4 + 1000 / 4) / mechanism.steps
    central = 2 * sqrt(rounds) / float(gaussian.mu(epsilon, DELTA))
    assert central < noise <= most * central
    assert epsilon * 0.998 < mechanism.epsilons(census, [(50, z, DELTA)])[0] <= epsilon


def test_a_claim_is_never_below_what_a_record_attains() -> None:
    """d = 1: neighbours two clips apart, at the integers where rounding does least for them."""
    mechanism = ShuffledBinomial(1, 10, 1.0, 16, least=1.0)
    for epsilon in (0.5, 2.0, 8.0):
        (z,) = mechanism.noise_multipliers(ONCE, [Budget(50, epsilon, DELTA)], 1e4)
        bits = 10 * mechanism.bits(1.0, z)
        x = np.arange(bits + 1)
        p, q = stats.binom.pmf(x, bits, 0.5), stats.binom.pmf(x - 32, bits, 0.5)
        assert float(np.maximum(0, p - exp(epsilon) * q).sum()) <= DELTA
        assert float(np.maximum(0, p - exp(0.75 * epsilon) * q).sum()) > DELTA


def test_every_sampler_is_priced_at_least_as_the_gaussian() -> None:
    mechanism = ShuffledBinomial(20, 1000, 1.0, 128)
    for batch in (FULL, Fresh(0.05), Subsample(0.1), Poisson(0.1), WithReplacement(0.05)):
        census: Census = ((Release(batch, 1.0), 4), (Release(batch, 2.0), 1))
        (spent,) = mechanism.epsilons(census, [(100, 20.0, DELTA)])
        assert cost.epsilon(census, 100, 20.0, DELTA) < spent < inf
    assert mechanism.epsilons((), [(100, 0.0, DELTA)]) == [0.0]
    assert mechanism.epsilons(ONCE, [(100, 0.0, DELTA), (100, 1e-4, DELTA)]) == [inf, inf]


def test_a_silos_own_bits_hide_next_to_nothing() -> None:
    mechanism = ShuffledBinomial(50, 1000, 1.0, advised_steps(50))
    (z,) = mechanism.noise_multipliers(ROUNDS, [Budget(50, 1.0, DELTA)], 1e4)
    (alone,) = mechanism.colluding_epsilons(ROUNDS, [(50, z, DELTA)])
    assert mechanism.colluding(z) == z / sqrt(1000)
    assert alone > cost.epsilon(ROUNDS, 50, z / sqrt(1000), DELTA) > 50


def test_bits_are_even_and_enough_for_the_honest() -> None:
    for honest in (1.0, 0.35):
        mechanism = ShuffledBinomial(50, 9, honest, 32)
        for z in (0.001, 0.7, 3.0):
            bits = mechanism.bits(1.5, z)
            assert bits % 2 == 0
            assert np.ceil(honest * 9) * bits >= 4 * (1.5 * z * mechanism.sensitivity()) ** 2
    with pytest.raises(Refused, match="bits a silo"):
        ShuffledBinomial(50, 1, 1.0, 2**20).bits(1.0, 1.0)


def test_what_cannot_be_is_refused() -> None:
    with refused("steps", 0):
        ShuffledBinomial(5, 3, 1.0, 0)
    with refused("honest_fraction", 1.5):
        ShuffledBinomial(5, 3, 1.5, 8)
    with pytest.raises(ValueError, match="for 7"):
        contributions(ShuffledBinomial(7, 1, 1.0, 8), torch.zeros(1, 8, dtype=torch.float64), 2)
    with pytest.raises(Refused, match="plan costs epsilon"):
        ShuffledBinomial(5, 3, 1.0, 8).noise_multipliers(ROUNDS, [Budget(50, 0.1, DELTA)], 1.0)
    assert ShuffledBinomial(5, 3, 1.0, 8).noise_multipliers(ROUNDS, [Budget(50, inf, DELTA)], 1.0) == [0.0]


def divergence(bits: int, shift: int, order: float, window: float) -> float:
    """ln sum over |x| <= window of p(x)^order p(x - shift)^(1 - order), over order - 1."""
    x = np.arange(-int(window), int(window) + 1)

    def log_p(at: np.ndarray) -> np.ndarray:
        ones = at + bits // 2
        return np.asarray(gammaln(bits + 1) - gammaln(ones + 1) - gammaln(bits - ones + 1) - bits * log(2))

    return float(logsumexp(order * log_p(x) + (1 - order) * log_p(x - shift))) / (order - 1)


@pytest.mark.parametrize("bits", [400, 10_000, 300_000])
@pytest.mark.parametrize("tail", [1e-3, 1e-12])
def test_the_lemma_bounds_the_divergence_in_the_window(bits: int, tail: float) -> None:
    """For every shift and order tried; and it is tight where bits are many: a smaller variance would fail."""
    window, reach = sqrt(bits * log(2 / tail) / 2), max(1, int(0.15 * sqrt(bits)))
    e = excess(bits, reach, tail)
    for shift in {1, 2, reach // 2 + 1, reach}:
        for order in (1.01, 2.0, 7.5, 40.0):
            exact = divergence(bits, shift, order, window)
            gaussian_part = 2 * order * shift**2 / (bits + 1)
            assert exact <= gaussian_part + e * shift
            if bits == 300_000 and shift == reach and 2 <= order <= 8:
                assert exact > 0.98 * gaussian_part
    outside = 2 * stats.binom.sf(bits // 2 + int(window), bits, 0.5)
    assert outside <= tail


def test_the_excess_falls_with_bits_and_is_infinite_where_there_are_too_few() -> None:
    found = [excess(bits, 10, 1e-9) for bits in (50, 1000, 10_000, 10**6)]
    assert found[0] == inf
    assert found == sorted(found, reverse=True)


def profile_of_one_coordinate(bits: int, shift: int, epsilon: float) -> float:
    """The exact delta of one release of one coordinate."""
    x = np.arange(0, bits + 1)
    p, q = stats.binom.pmf(x, bits, 0.5), stats.binom.pmf(x - shift, bits, 0.5)
    return float(np.maximum(0, p - exp(epsilon) * q).sum())


@pytest.mark.parametrize(("bits", "shift"), [(2000, 5), (20_000, 30), (200_000, 100)])
def test_a_claim_is_never_below_what_one_coordinate_attains(bits: int, shift: int) -> None:
    delta = 1e-6
    mu = shift / sqrt((bits + 1) / 4)
    claimed = renyi_epsilon(mu, 0.99 * delta, excess(bits, shift, 0.01 * delta) * shift)
    assert profile_of_one_coordinate(bits, shift, claimed) <= delta
    assert profile_of_one_coordinate(bits, shift, 0.7 * claimed) > delta


def test_cpsgd_agrees_and_is_the_weaker_of_the_two() -> None:
    """The reference's figures: 13.0 and 11.0 clips at d = 50, epsilon 1, delta 1e-6, with g = 32 and 200."""
    for g, wanted in ((32, 13.0), (200, 11.0)):
        l2, linf = 2 * g + sqrt(50), 2 * g + 1
        bits = 4
        while cpsgd_epsilon(bits, 50, l2, linf, 1e-6) > 1:
            bits = int(bits * 1.01) + 1
        assert sqrt(bits) / 2 / g == pytest.approx(wanted, rel=0.02)
        ours = renyi_epsilon(l2 / (sqrt(bits) / 2), 0.99e-6, excess(bits, linf, 1e-8 / 50) * sqrt(50) * l2)
        assert ours < 0.95
    assert cpsgd_epsilon(100, 50, 71.0, 65.0, 1e-6) == inf
