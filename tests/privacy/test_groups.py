"""What replacing k records costs where batches are sampled: against brute force over all batches."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special, stats

from fedsim.privacy import cost, gaussian, groups, loss
from fedsim.privacy.groups import GroupPair, grouped
from fedsim.privacy.pairs import GaussianPair, PoissonPair, SubsampledPair, WithReplacementPair

LINE = np.linspace(-10, 10, 1601)
EPSILONS = np.array([0.0, 0.05, 0.3, 1.0, 2.0, 3.5])
MU = 0.9


def batches(kind, n, size, q):
    """(chance, how often each record counts) of all batches."""
    if kind == "fixed":
        every = [[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), size)]
        return np.full(len(every), 1 / len(every)), np.array(every, float)
    if kind == "replacement":
        every = [np.bincount(draws, minlength=n) for draws in itertools.product(range(n), repeat=size)]
        return np.full(len(every), 1 / len(every)), np.array(every, float)
    every = np.array(list(itertools.product([0, 1], repeat=n)), float)
    return np.prod(np.where(every, q, 1 - q), axis=1), every


def hockey_sticks(chance, counts, records, others):
    """At EPSILONS, of noise 1 on sums over the batches of one data set of numbers and of another."""
    p, q = (chance @ stats.norm.pdf(LINE - (counts @ own)[:, None]) for own in (records, others))
    step = LINE[1] - LINE[0]
    return np.maximum(0, p - np.exp(EPSILONS[:, None]) * q).sum(axis=1) * step


SETTINGS = [
    ("fixed", 7, 2, 0.0, 2),
    ("fixed", 7, 3, 0.0, 3),
    ("poisson", 5, 0, 0.1, 3),
    ("poisson", 5, 0, 0.4, 3),
    ("replacement", 4, 3, 0.0, 2),
]


def pair_of(kind, n, size, q, k):
    one = {
        "fixed": lambda: SubsampledPair(MU, size / n),
        "poisson": lambda: PoissonPair(MU, q),
        "replacement": lambda: WithReplacementPair(MU, n, size),
    }[kind]()
    return grouped(one, n, k)


@pytest.mark.parametrize(("kind", "n", "size", "q", "k"), SETTINGS)
def test_no_data_sets_exceed_the_pair_and_some_attain_it(kind, n, size, q, k):
    """Numbers in [-mu / 2, mu / 2], all ends and many others, in both orders."""
    chance, counts = batches(kind, n, size, q)
    ends = [[-1.0] * i + [1.0] * (k - i) for i in range(k + 1)]
    rest = np.array([[-1.0] * (n - k), [0.0] * (n - k), [1.0] * (n - k), [(-1.0) ** i for i in range(n - k)]])
    rng = np.random.default_rng(3)
    cases = [(*a, *r) for a in ends for r in rest], [(*b, *r) for b in ends for r in rest]
    found = [(a, b) for a, b in itertools.product(*cases) if a[k:] == b[k:]]
    for _ in range(40):
        inside = rng.uniform(-1, 1, n)
        found.append((inside, np.where(np.arange(n) < k, rng.uniform(-1, 1, n), inside)))
    most = np.max(
        [hockey_sticks(chance, counts, *(MU / 2 * np.array(x) for x in each)) for each in found], axis=0
    )
    claimed = pair_of(kind, n, size, q, k).profile(EPSILONS)
    assert np.all(most <= claimed + 1e-6)
    if kind == "poisson":
        assert claimed == pytest.approx(most, rel=2e-3)
    if kind == "fixed":  # an upper bound, of what is attained where epsilon is not small
        assert claimed[3:] == pytest.approx(most[3:], rel=1e-2)
        assert np.all(claimed <= 1.4 * most + 1e-9)


def test_terms_that_point_anywhere_cost_less_than_those_on_a_line():
    rng, q, k = np.random.default_rng(5), 0.3, 2
    x = np.stack(np.meshgrid(np.linspace(-7, 7, 281), np.linspace(-7, 7, 281)), -1).reshape(-1, 2)
    chance, counts = batches("poisson", k, 0, q)
    claimed = pair_of("poisson", 9, 0, q, k).profile(EPSILONS)
    for _ in range(30):
        angle = rng.uniform(0, 2 * math.pi, (2, k))
        terms = MU / 2 * np.stack([np.cos(angle), np.sin(angle)], -1)
        p, other = (
            chance @ np.exp(-((x[None] - (counts @ own)[:, None]) ** 2).sum(-1) / 2) / (2 * math.pi)
            for own in terms
        )
        sticks = np.maximum(0, p - np.exp(EPSILONS[:, None]) * other).sum(axis=1) * 0.05**2
        assert np.all(sticks <= claimed + 1e-6)


@pytest.mark.parametrize(
    "one", [SubsampledPair(MU, 0.05), PoissonPair(MU, 0.05), WithReplacementPair(MU, 1000, 50)]
)
def test_a_group_of_one_is_a_record(one):
    at = np.linspace(0, 3, 40)
    exact, found = one.profile(at), grouped(one, 1000, 1).profile(at)
    assert np.all(found >= exact * (1 - 1e-9))
    assert found == pytest.approx(exact, rel=2e-3)


@dataclass(frozen=True)
class Mixture(loss.Pair):
    """sum_j p_j N(j mu) against N(0) at losses >= 0, and as much in the other order."""

    chance: tuple[float, ...]
    mu: float

    def profile(self, epsilon):
        t = np.linspace(-8, self.mu * len(self.chance) + 30, 20_000)[:, None]
        j, p = np.arange(len(self.chance)), np.array(self.chance)
        at = special.logsumexp(t * j * self.mu - (j * self.mu) ** 2 / 2, b=p, axis=1)
        found = special.ndtr(j * self.mu - t) @ p - np.exp(at + special.log_ndtr(-t[:, 0]))
        return np.interp(epsilon, at, np.maximum(0, found))

    def reach(self, tail):
        return float(groups._table(GroupPair(self.mu, self.chance, poisson=False))[0][-1] / 3)


@pytest.mark.parametrize(
    ("n", "size", "count", "z"),
    [
        (1000, 50, 100, 2.28),
        (1000, 10, 10, 0.78),
        (1000, 50, 1, 0.59),
        (200, 40, 30, 2.575),
        (100, 50, 20, 4.713),
    ],
)
def test_five_records_cost_what_their_mixtures_do(n, size, count, z):
    """Within 2 %; by Proposition 12 1.3 to 16 times as much, or nothing at all."""
    plan = cost.Composition(0.0, ((SubsampledPair(1 / z, size / n), count),))
    spent = groups.epsilon(plan, n, 5, 1e-5)
    chance = tuple(stats.hypergeom.pmf(range(6), n, 5, size))
    own = loss.epsilon([(Mixture(chance, 1 / z), count)], 1e-5)
    assert own * 0.999 <= spent <= 1.02 * own


def test_what_is_not_sampled_or_hardly_costs_k_mu():
    plan = cost.Composition(0.5, ())
    assert groups.epsilon(plan, 10, 3, 1e-5) == pytest.approx(float(gaussian.epsilon(1.5, 1e-5)), rel=1e-3)
    assert grouped(SubsampledPair(MU, 0.5), 10, 6) == GaussianPair(5 * MU)  # no batch is without all six
    assert groups.epsilon(cost.Composition(40.0, ()), 10, 2, 1e-5) == math.inf


@pytest.mark.parametrize("one", [SubsampledPair(0.7, 0.1), PoissonPair(0.7, 0.1)])
def test_fifty_records_cost_more_than_ten_and_less_than_if_all_were_in_every_batch(one):
    plan = cost.Composition(0.0, ((one, 20),))
    ten, fifty = (groups.epsilon(plan, 1000, k, 1e-5) for k in (10, 50))
    assert 5 * ten < fifty < 0.1 * float(gaussian.epsilon(50 * 0.7 * math.sqrt(20), 1e-5))


@pytest.mark.parametrize(
    ("pair", "n", "k", "law"),
    [
        (PoissonPair(0.02, 0.9), 10_000, 500, stats.binom(500, 0.9)),
        (PoissonPair(0.02, 0.5), 10_000, 1080, stats.binom(1080, 0.5)),
        (SubsampledPair(0.01, 0.5), 2000, 900, stats.hypergeom(2000, 900, 1000)),
    ],
)
def test_chances_of_large_groups_are_those_of_their_law(pair, n, k, law):
    """The chance that none of the group is in the batch is no number in float64."""
    chance = np.array(grouped(pair, n, k).chance)
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(chance, law.pmf(np.arange(len(chance))), atol=1e-11)
    if k <= 1000:
        plan = cost.Composition(0.0, ((pair, 1),))
        assert groups.epsilon(plan, n, k, 1e-5) > groups.epsilon(plan, n, k // 10, 1e-5) > 0


def test_larger_groups_and_certain_draws_are_not_claimed_to_be_free():
    plan = cost.Composition(0.0, ((WithReplacementPair(0.0125, 1000, 500), 1),))
    assert groups.epsilon(plan, 1000, 800, 1e-5) == math.inf
    certain = cost.Composition(0.0, ((WithReplacementPair(0.5, 100, 100), 3),))
    assert 10 < groups.epsilon(certain, 100, 50, 1e-5) < math.inf
    assert groups.epsilon(cost.Composition(0.0, ()), 100, 2, 1e-5) == 0
    assert groups.epsilon(cost.Composition(0.0, ((PoissonPair(0.01, 0.5), 1),)), 9000, 2000, 1e-5) == math.inf
