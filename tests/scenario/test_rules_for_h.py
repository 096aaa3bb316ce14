"""Rules for h: against brute force over persons, and against vectors that were computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsim.algorithms.prepared import Contributions
from fedsim.protocol.contributions import tradeoff, variance
from fedsim.scenario.contributions import sweet_spot

COUNTS = [1, 1, 2, 4, 8, 16]
PROFILE = {1: 1 / 3, 2: 1 / 6, 4: 1 / 6, 8: 1 / 6, 16: 1 / 6}  # of six persons


def noise(epsilon: float) -> float:
    """Laplace noise of scale 1 / epsilon has this deviation; sensitivity 1, as where values change alone."""
    return math.sqrt(2) / epsilon


@pytest.mark.parametrize(
    ("epsilon", "h", "least"), [(0.5, 1.0, 0.303819), (1.0, 1.361702, 0.134286), (2.0, 3.2, 0.0735294)]
)
def test_the_variance_of_smooth_weights(epsilon: float, h: float, least: float) -> None:
    """The best h, not rounded, and its variance, for terms of variance 1."""
    assert variance(h, PROFILE, 6, noise(epsilon), "smooth") == pytest.approx(least, rel=1e-5)
    others = [variance(x, PROFILE, 6, noise(epsilon), "smooth") for x in np.linspace(1, 16, 1501)]
    assert min(others) >= least * (1 - 1e-5)
    whole = min(range(1, 17), key=lambda x: variance(x, PROFILE, 6, noise(epsilon), "smooth"))
    assert tradeoff(PROFILE, 6, noise(epsilon), "smooth") == whole
    assert abs(whole - h) < 1


@pytest.mark.parametrize(("epsilon", "h", "least"), [(0.5, 1, 0.388889), (1.0, 2, 0.18), (2.0, 4, 0.09375)])
def test_the_variance_of_limited_records(epsilon: float, h: int, least: float) -> None:
    assert variance(h, PROFILE, 6, noise(epsilon), "limit") == pytest.approx(least, rel=1e-5)
    assert tradeoff(PROFILE, 6, noise(epsilon), "limit") == h


@pytest.mark.parametrize("bound", ["limit", "smooth"])
def test_the_variance_is_that_of_the_weights_that_a_silo_gives(bound: str) -> None:
    h, rng = 3, np.random.default_rng(0)
    kept = np.repeat(np.minimum(COUNTS, h) / np.array(COUNTS), COUNTS)
    if bound == "limit":
        kept = np.concatenate([rng.permutation(np.arange(s) < h) for s in COUNTS]).astype(float)
    weights, owner = kept / kept.sum(), np.repeat(np.arange(6), COUNTS)
    most = np.bincount(owner, weights).max()
    found = (weights**2).sum() + (2.5 * most) ** 2
    assert variance(h, PROFILE, 6, 2.5, bound) == pytest.approx(found)


def test_tradeoffs_h_grows_with_the_budget() -> None:
    found = [tradeoff(PROFILE, 6, noise(epsilon), "smooth") for epsilon in (0.1, 1, 2, 5, 20, 1e6)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 16)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 0.4, 0.7, 5.0])
def test_the_sweet_spot_is_the_ceil_of_the_noiseth_largest_contribution(epsilon: float) -> None:
    """Of scalars under Laplace noise of scale h / epsilon: Amin et al. 2019."""
    h = sweet_spot(PROFILE, 6, 1 / epsilon)
    ordered = sorted(COUNTS, reverse=True)
    assert h == ordered[min(math.ceil(1 / epsilon), 6) - 1]

    def error(cap: float) -> float:
        return cap / epsilon + sum(max(0, s - cap) for s in COUNTS)

    if 1 / epsilon < 6:
        assert error(h) == pytest.approx(min(error(cap) for cap in range(1, 17)))


def test_a_quantile_of_a_noisy_histogram() -> None:
    rule = Contributions(share=0.1, q=0.8, largest=10)
    assert rule.ends == (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
    exact = torch.tensor([0.5, 0.2, 0.05, 0.0, 0.1, 0.1, 0.05], dtype=torch.float64)
    assert [Contributions(share=0.1, q=q, largest=10).h(exact) for q in (0.1, 0.5, 0.6, 0.8, 0.9, 0.99)] == [
        1,
        1,
        2,
        6,
        8,
        10,
    ]
    noisy = exact + torch.tensor([0.02, -0.03, 0.04, -0.06, 0.05, -0.02, 0.03])
    assert rule.h(noisy) == 6
    assert rule.h(3 * noisy) == 6  # where silos that answer weigh more
    # below falls from .6 to .4 and rises to .9: between, the curves just above and below are .6 and .4
    falling = torch.tensor([0.6, -0.2, 0.0, 0.5, 0.1, 0.0, 0.0], dtype=torch.float64)
    assert Contributions(share=0.1, q=0.55, largest=10).h(falling) == 4
    for broken in (torch.zeros(7), -torch.ones(7), torch.full((7,), 1e9)):
        assert 1 <= rule.h(broken.double()) <= 10


def test_the_private_root_is_the_tradeoff_by_the_histogram() -> None:
    rule = Contributions(share=0.1, q=0.9, largest=10, noise=40.0, persons=200, bound="smooth")
    exact = torch.tensor([0.5, 0.2, 0.05, 0.0, 0.1, 0.1, 0.05], dtype=torch.float64)
    profile = {int(end): float(share) for end, share in zip(rule.ends, exact, strict=True)}
    assert rule.h(exact) == tradeoff(profile, 200, 40.0, "smooth")
    assert [replace(rule, noise=noise).h(exact) for noise in (1e4, 0.01)] == [1, 10]
    for broken in (torch.zeros(7), -torch.ones(7), torch.full((7,), 1e9)):
        assert 1 <= rule.h(broken.double()) <= 10


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_a_quantile_is_near_that_of_the_counts_under_the_noise_of_a_run(q: float) -> None:
    """2,000 persons in cells of at most sqrt(2): a tenth of the budget mu = .25, as of ten silos of 200."""
    rng, rule = np.random.default_rng(1), Contributions(share=0.1, q=q, largest=50)
    counts = np.minimum(200, np.floor(rng.pareto(1.2, 2000) + 1))
    cells = np.bincount(np.searchsorted(rule.ends[:-1], counts), minlength=len(rule.ends)) / 2000
    found = []
    for _ in range(200):
        noise = rng.standard_normal(len(cells)) * math.sqrt(2) / (math.sqrt(0.1) * 0.25 * 200 * math.sqrt(10))
        found.append(rule.h(torch.from_numpy(cells + noise)))
    share = np.array([(counts <= h).mean() for h in found])
    assert abs(np.median(share) - q) < 0.08
