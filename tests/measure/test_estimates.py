"""Gaps between groups from noisy counts: how near they are, and whether their standard error says so."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from fedsim.measure.estimates import gaps
from fedsim.measure.groups import ByGroup
from fedsim.privacy import gaussian

Array = npt.NDArray[np.float64]
GAPS = ("parity_gap", "odds_gap", "opportunity_gap")
NAMES = ("men", "women")
# about Census income: 2/3 men, of whom 31 % earn more, of women 11 %; true positive rates 0.6 and 0.5
CENSUS = 25_000 * np.array([[[0.42, 0.04], [0.083, 0.124]], [[0.289, 0.007], [0.0185, 0.0185]]])


def noise_of(silos: int, n: int, epsilon: float) -> float:
    """Of a cell of the sum, where each silo spends all of epsilon at delta 1 / n^2 on it."""
    return math.sqrt(2 * silos) / float(gaussian.mu(epsilon, 1 / n**2))


def exact(table: Array) -> dict[str, float]:
    return {name: float(getattr(ByGroup(table, None), name)) for name in GAPS}


def drawn(seed: int, groups: int, classes: int, most: float = 1e4) -> Array:
    return np.random.default_rng(seed).uniform(most / 10, most, (groups, classes, classes))


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (3, 2), (4, 3)])
def test_without_noise_they_are_those_of_the_counts(groups: int, classes: int) -> None:
    table = drawn(0, groups, classes)
    found, expected = gaps(table.ravel(), 0.0, (*NAMES, "other", "unknown")[:groups]), exact(table)
    for name, one in found.items():
        assert one.value == pytest.approx(expected[name], abs=1e-14)
        assert one.standard_error == 0


@pytest.mark.parametrize("seed", range(4))
def test_of_two_groups_it_is_the_spread_of_the_gap(seed: int) -> None:
    """To first order, by the gap's own slope in each cell; of odds that of the worse known rate."""
    table = drawn(seed, 2, 2)
    found = gaps(table, 30.0, NAMES)
    steps = np.eye(table.size).reshape(-1, *table.shape)
    slopes = [
        [(exact(table + step)[name] - exact(table - step)[name]) / 2 for step in steps] for name in GAPS
    ]
    parity, odds, opportunity = 30.0 * np.linalg.norm(slopes, axis=1)
    assert found["parity_gap"].standard_error == pytest.approx(parity, rel=1e-4)
    assert found["opportunity_gap"].standard_error == pytest.approx(opportunity, rel=1e-4)
    assert found["odds_gap"].standard_error >= 0.9999 * max(odds, opportunity)


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (3, 3), (5, 2)])
@pytest.mark.parametrize("equal", [True, False])
def test_the_largest_of_several_gaps_is_covered_too(groups: int, classes: int, equal: bool) -> None:
    rng, names = np.random.default_rng(0), tuple("abcde"[:groups])
    table = drawn(1, groups, classes)
    if equal:
        table = table[:1] * np.arange(1, groups + 1)[:, None, None] / groups
    truth, covered, draws = exact(table), dict.fromkeys(GAPS, 0), 1000
    for _ in range(draws):
        for name, one in gaps(table + 30.0 * rng.standard_normal(table.shape), 30.0, names).items():
            covered[name] += abs(one.value - truth[name]) <= 1.96 * one.standard_error
    count = groups * (groups - 1) // 2 * (1 if classes == 2 else classes)  # of gaps, where all are equal
    misses = {name: 1 - times / draws for name, times in covered.items()}
    for name, share in misses.items():
        several = count * (2 if name == "odds_gap" else 1) if equal else 1
        assert share <= 0.025 * (1 + several) + 0.02, name


def test_of_five_silos_at_half_an_epsilon_the_interval_is_short_and_covers() -> None:
    """1,000 draws; half or twice the error would not do."""
    noise, rng = noise_of(5, 5000, 0.5), np.random.default_rng(2)
    truth, covered, longest = exact(CENSUS), dict.fromkeys(GAPS, 0), 0.0
    for _ in range(1000):
        found = gaps(CENSUS + noise * rng.standard_normal(CENSUS.shape), noise, NAMES)
        longest = max(longest, 1.96 * found["parity_gap"].standard_error)
        for name, one in found.items():
            covered[name] += abs(one.value - truth[name]) <= 1.96 * one.standard_error
    assert longest <= 0.015
    assert 930 <= covered["parity_gap"] <= 970
    assert 930 <= covered["opportunity_gap"] <= 970
    assert 925 <= covered["odds_gap"] <= 990  # the larger of two


def test_at_parity_the_interval_still_covers() -> None:
    """A gap of noise alone is above 0, and its interval reaches down to it."""
    noise, rng = noise_of(5, 5000, 0.5), np.random.default_rng(3)
    table = np.stack([2 * CENSUS[1], CENSUS[1]])
    found = [gaps(table + noise * rng.standard_normal(table.shape), noise, NAMES) for _ in range(400)]
    parity = [one["parity_gap"] for one in found]
    assert 0.92 <= np.mean([one.value <= 1.96 * one.standard_error for one in parity]) <= 0.98


def test_a_group_of_mostly_noise_leaves_its_gaps_unknown_and_is_named() -> None:
    table = CENSUS.copy()
    table[1, 1] = 5.0  # of women nearly none earn more
    found = gaps(table, 40.0, NAMES)
    assert not found["parity_gap"].too_few
    for name in ("odds_gap", "opportunity_gap"):
        assert math.isnan(found[name].value)
        assert found[name].too_few
        assert found[name].reason == "too few of women for the noise"
    table[1] = 0.0
    assert {one.reason for one in gaps(table, 0.0, NAMES).values()} == {"too few of women for the noise"}


def test_what_is_just_known_is_covered() -> None:
    """The smaller group has about 5.5 times its noise."""
    rng, noise = np.random.default_rng(4), 10.0
    table = np.array([[[2e5, 0.0], [2e5, 4e5]], [[60.0, 0.0], [30.0, 20.0]]])
    found = [gaps(table + noise * rng.standard_normal(table.shape), noise, NAMES) for _ in range(1000)]
    known = [one["parity_gap"] for one in found if one["parity_gap"].reason is None]
    truth = exact(table)["parity_gap"]
    assert np.mean([abs(one.value - truth) <= 1.96 * one.standard_error for one in known]) >= 0.93
    assert len(known) > 500
