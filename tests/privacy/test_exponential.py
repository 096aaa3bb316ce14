"""The exponential mechanism: its price, the worst pairs, the sensitivity of its scores, its samplers."""

import itertools
import math
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from support.helpers import FALSE_ALARM

from fedsim.common.errors import InputError
from fedsim.privacy import attainable, cost, gaussian
from fedsim.privacy.calibrate import Budget, noise_multipliers
from fedsim.privacy.exponential import (
    ChoicePair,
    Scores,
    chosen,
    chosen_exactly,
    epsilon_of,
    mu_of,
    rank_scores,
)
from fedsim.privacy.pairs import profile
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.batch import FULL, Fresh, Part, WithReplacement
from fedsim.protocol.plan import Ask, Plan, QueryShape, Release
from fedsim.protocol.statistics import statistic
from fedsim.protocol.unit import RECORD, Person
from silos.vault.selections import PER_ONE, drawn

EPSILONS = [0.05, 0.5, 1.0, 2.0, 6.0]


def law(scores, epsilon):
    """Probabilities over the last axis of scores in units of 1."""
    return special.softmax(epsilon / 2 * np.asarray(scores, float), axis=-1)


def law_of(scores, epsilon):
    return law(scores.parts / scores.per_one, epsilon)


def needed_mu(p, q):
    """The least mu at which no test between p and q, (..., k) each, has more power than mu-GDP allows.

    The trade-off function is piecewise linear, and the area above that of mu-GDP convex: corners suffice.
    """
    order = np.argsort(p / q, axis=-1)
    p, q = np.take_along_axis(p, order, -1), np.take_along_axis(q, order, -1)
    return (quantiles(p) - quantiles(q)).max(axis=-1)


def quantiles(p):
    """Phi^-1 of the probability of the last j outcomes, j = k - 1 to 1, each from its smaller tail."""
    below = np.cumsum(p, axis=-1)[..., :-1]
    above = np.cumsum(p[..., ::-1], axis=-1)[..., -2::-1]
    return np.where(above < below, special.ndtri(above), -special.ndtri(below))


def hockey_stick(p, q, at):
    return np.maximum(p - math.exp(at) * q, 0).sum(axis=-1)


# the price


def true_mu(epsilon):
    """In 50 digits."""
    x = mpmath.mpf(float(epsilon)) / 2
    tail = 1 / (1 + mpmath.exp(x))
    if x < 30:
        return 2 * mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)

    def gap(half):
        return mpmath.log(mpmath.erfc(half / mpmath.sqrt(2)) / 2) - mpmath.log(tail)

    start = float(-special.ndtri_exp(special.log_expit(-float(x))))
    return 2 * mpmath.findroot(gap, start)


def true_epsilon(mu):
    half = mpmath.mpf(float(mu)) / 2
    below, above = (mpmath.erfc(sign * half / mpmath.sqrt(2)) for sign in (1, -1))
    return 2 * mpmath.log(above / below)


def test_known_prices():
    assert mu_of([0.5, 2.0]) == pytest.approx([0.313, 1.232], abs=5e-4)
    assert mu_of(1e-9) / 1e-9 == pytest.approx(math.sqrt(2 * math.pi) / 4, rel=1e-9)  # .6267
    assert mu_of([0.0, math.inf]).tolist() == [0.0, math.inf]
    assert epsilon_of([0.0, math.inf]).tolist() == [0.0, math.inf]


def test_the_price_is_never_below_the_true_one_and_hardly_above():
    points = np.concatenate([np.geomspace(1e-12, 1e3, 600), [2 - 1e-12, 2.0, 2 + 1e-12]])
    with mpmath.workdps(50):
        excess = [float(mpmath.mpf(float(mu_of(e))) / true_mu(e) - 1) for e in points]
    assert min(excess) > 0
    assert max(excess) < 1e-13


def test_what_a_mu_affords_is_never_above_the_truth_nor_priced_above_it():
    points = np.concatenate([np.geomspace(1e-12, 70, 600), [2 - 1e-12, 2.0, 2 + 1e-12]])
    afforded = epsilon_of(points)
    assert np.all(mu_of(afforded) <= points)
    assert np.all(mu_of(afforded) > points * (1 - 1e-12))
    with mpmath.workdps(50):
        short = [
            float(1 - mpmath.mpf(float(e)) / true_epsilon(mu)) for e, mu in zip(afforded, points, strict=True)
        ]
    assert min(short) > 0
    assert max(short) < 1e-12


def test_half_a_range_more_from_the_middle_costs_most():
    """The step of the proof that is not algebra: the slope of Phi^-1(1 / (1 + e^-x)) is even and falls."""
    x = np.linspace(-30, 30, 6001)
    z = special.ndtri(special.expit(x))
    slope = np.exp(special.log_expit(x) + special.log_expit(-x) + z**2 / 2)
    half = len(x) // 2
    assert np.all(np.diff(slope[:half]) > 0)
    assert np.all(np.diff(slope[half:-400]) < 0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_worst_pair_of_two_candidates_attains_the_price(epsilon):
    p, q = law([1, 0], epsilon), law([0, 1], epsilon)
    assert needed_mu(p, q) == pytest.approx(mu_of(epsilon), rel=1e-6)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_quantile_attains_the_price(epsilon):
    """Two of three records are in one cell among many, and the third moves from above it to below it."""
    edges = np.append(np.linspace(-1, 0, 10_001), np.linspace(1, 2, 10_001))
    before, after = (rank_scores(np.array(v), edges, 0.5) for v in ([0.5, 0.5, 3.0], [0.5, 0.5, -2.0]))
    needed = needed_mu(law_of(before, epsilon), law_of(after, epsilon))
    assert 0.99 * mu_of(epsilon) < needed <= mu_of(epsilon) * (1 + 1e-9)


def random_pairs(rng, pairs, k):
    """Score vectors (pairs, k), and those of neighbours: random moves, moves of 1, and few moves of 1."""
    scores = rng.normal(size=(pairs, k)) * rng.choice([0.1, 1, 4], size=(pairs, 1))
    anything = rng.uniform(-1, 1, (pairs, k))
    ends = rng.choice([-1.0, 1.0], (pairs, k))
    kind = rng.integers(3, size=(pairs, 1))
    return scores, scores + np.choose(kind, [anything, ends, ends * (rng.random((pairs, k)) < 0.5)])


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_mechanism_of_100_000_exceeds_the_price(epsilon):
    rng = np.random.default_rng(7)
    mu = float(mu_of(epsilon))
    needed, ks = [], range(2, 12)
    for k in ks:
        p, q = (law(s, epsilon) for s in random_pairs(rng, 10_000, k))
        needed.append(needed_mu(p, q))
        for at in (-epsilon / 2, 0.0, epsilon / 4, epsilon / 2, 0.9 * epsilon):
            assert np.all(hockey_stick(p, q, at) <= profile(ChoicePair(mu), at) + 1e-12)
            assert profile(ChoicePair(mu), at) <= gaussian.profile(at, mu) + 1e-12
    needed = np.concatenate(needed)
    assert len(needed) == 100_000
    assert needed.max() <= mu * (1 + 1e-9)
    assert needed.max() > 0.99 * mu  # so that a price of 1 % less would have failed


# the price by its own profile


def closed_form(epsilon, delta):
    """At which one choice has hockey-stick divergence delta."""
    return max(0.0, epsilon + 2 * math.log1p(-math.sqrt(delta * -math.expm1(-epsilon))))


def choices(*epsilons, z=3.0):
    return tuple((Release(FULL, z * float(mu_of(e)), drawn=True), k) for e, k in Counter(epsilons).items())


def two_outcomes(epsilon, t):
    """P and the losses of the worst choice for given t, shape as t."""
    first = np.expm1(t - epsilon) / np.expm1(-epsilon)
    return np.stack([first, 1 - first]), np.stack([t, t - epsilon])


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
@pytest.mark.parametrize("epsilon", [0.01, *EPSILONS, 60.0])
def test_one_choice_costs_what_its_worst_pair_does(epsilon, delta):
    spent, exact = cost.epsilon(choices(epsilon), 10, 3.0, delta), closed_form(epsilon, delta)
    assert exact <= spent <= exact * 1.001 + 1e-12
    if exact:
        gap = np.linspace(-16, epsilon, 4_001)[:, None] * [1, 0]  # of the scores, times epsilon / 2
        p, q = special.softmax(gap, -1), special.softmax(gap - [epsilon, 0], -1)
        assert hockey_stick(p, q, exact).max() == pytest.approx(delta, rel=1e-3)


def test_a_budget_is_spent_on_the_draw():
    """As a Gaussian release the choice would be drawn at .378."""
    (z,) = noise_multipliers(choices(1.0, z=1.0), [Budget(10, 1.0, 1e-5)], 1e6)
    assert 1.003 < epsilon_of(mu_of(1.0) / z) < 1.0051


def best(epsilon, following, at, points=1500):
    """The most that one choice makes of the profile of what follows, t being one of so many."""
    p, loss = two_outcomes(epsilon, np.linspace(0, epsilon, points))
    return (p[..., None] * following(at - loss[..., None])).sum(0).max(0)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_choices_in_turn_cost_what_the_worst_choice_after_each_answer_does(epsilon):
    one, two, three = (ChoicePair(float(mu_of(epsilon)), k) for k in (1, 2, 3))
    last = partial(best, epsilon, lambda at: np.maximum(0, -np.expm1(at)))
    at = np.linspace(0.02, 0.85, 7) * epsilon
    assert last(at) == pytest.approx(one.profile(at), rel=1e-3)
    for pair, following in ((two, one), (three, two)):
        exact = best(epsilon, partial(profile, following), pair.times * at)
        found = pair.profile(pair.times * at)
        assert np.all(exact <= found * (1 + 1e-6))
        assert found == pytest.approx(exact, rel=6e-3)


def attained(epsilon, count, delta):
    """By as many choices of one t: a binomial number of them has the larger loss."""
    found, k = 0.0, np.arange(count + 1)
    for t in np.linspace(0.4, 0.7, 13) * epsilon:
        first = two_outcomes(epsilon, t)[0][0]
        weight, loss = stats.binom.pmf(k, count, first), k * t + (count - k) * (t - epsilon)

        def excess(at, weight=weight, loss=loss):
            return weight @ np.maximum(0, -np.expm1(at - loss)) - delta

        found = max(found, optimize.brentq(excess, 0, count * epsilon))
    return found


@pytest.mark.parametrize(("epsilon", "count"), [(0.3, 10), (0.2, 32), (0.1, 100)])
def test_many_choices_cost_hardly_more_than_those_of_one_kind(epsilon, count):
    """Before, .313 mu-GDP for each: 1.3 times as much."""
    spent, least = cost.epsilon(choices(*[epsilon] * count), 10, 3.0, 1e-5), attained(epsilon, count, 1e-5)
    assert least <= spent <= 1.04 * least
    assert float(gaussian.epsilon(mu_of(epsilon) * math.sqrt(count), 1e-5)) > 1.25 * least


def test_choices_of_two_kinds_beside_gaussian_releases():
    """Attained: a Gaussian profile shifted by the losses of three choices, of t that are fixed in advance."""
    kinds, z, delta = (0.4, 0.4, 1.0), 3.0, 1e-4

    def excess(at, apart, shares):
        return shares @ gaussian.profile(at - apart, 0.5) - delta

    spent = cost.epsilon((*choices(*kinds), (Release(FULL, 1.5), 1)), 10, z, delta)
    least = 0.0
    for a, b in itertools.product(np.linspace(0.4, 0.95, 12), repeat=2):
        apart, shares = np.zeros(1), np.ones(1)
        for epsilon, t in zip(kinds, (0.4 * a, 0.4 * a, b), strict=True):
            p, loss = two_outcomes(epsilon, t)
            apart, shares = np.add.outer(apart, loss).ravel(), np.outer(shares, p).ravel()
        if shares @ gaussian.profile(least - apart, 0.5) > delta:
            least = optimize.brentq(excess, least, 9, (apart, shares))
    assert least <= spent <= 1.04 * least
    assert spent < cost.epsilon((*cost.as_gaussian(choices(*kinds)), (Release(FULL, 1.5), 1)), 10, z, delta)


def test_a_plan_tells_choices_from_sums_where_all_records_are_asked():
    asks = (
        QueryShape("sum", 0, 0.5, (0.0, -1.0, 1.0)),
        QueryShape("quantile", 0, 0.25, (0.0, 0.5, -1.0, 1.0, 9.0)),
    )
    full = Plan(((Ask(FULL, asks),),)).census()
    assert set(full) == {(Release(FULL, 2.0), 1), (Release(FULL, 4.0, drawn=True), 1)}
    weight = cost.compose(cost.as_gaussian(full), 10).weight
    assert weight == pytest.approx(math.hypot(2, 4))
    # of several releases on a batch that one in its place would have been, the largest alone would count
    for batch in (Fresh(0.5), Part(0.0, 0.5)):
        assert cost.compose(Plan(((Ask(batch, asks),),)).census(), 10).weight == pytest.approx(weight)


# the scores

TEN = np.arange(10) + 0.5
OWNERS = np.array([0] * 5 + [1, 2, 3, 4, 5])


def test_the_ten_values_of_six_persons():
    edges = [0.0, *(x + side for x in TEN for side in (-0.1, 0.1)), 11.0]
    p = law_of(rank_scores(TEN, edges, 0.5, OWNERS), 1.0)
    p = p[::2] * [1, *[2] * 9, 1]  # of the empty cells, those between values counting twice as in the source
    intervals = p / p.sum()
    known = [0.0258, 0.0570, 0.0630, 0.0696, 0.0770, 0.0851, 0.1402, 0.2312, 0.1402, 0.0851, 0.0258]
    assert intervals == pytest.approx(known, abs=5e-5)


def test_scores_of_records_are_rank_errors_exactly():
    values = np.array([3.0, -np.inf, 1.0, 1.0, np.nan, np.inf])
    scores = rank_scores(values, [0.0, 1.0, 2.0, 5.0], 0.35)
    assert [Fraction(int(part), scores.per_one) for part in scores.parts] == [
        Fraction(-11, 10),  # one is below 1, where 2.1 are to be
        0,
        Fraction(-9, 10),  # three are below 2
    ]


def test_the_cell_of_many_equal_values_has_their_quantile():
    values = np.repeat([2.0, 3.0, 4.0], [450, 150, 400])
    scores = rank_scores(values, np.linspace(0, 30, 1025).tolist(), 0.5)
    best = np.flatnonzero(scores.parts == 0)
    assert best.tolist() == [int(3 / 30 * 1024)]


def test_scores_do_not_depend_on_order_nor_on_names():
    rng = np.random.default_rng(3)
    values, persons = rng.integers(5, size=30) / 2.0, rng.integers(6, size=30)
    expected = rank_scores(values, [0, 1, 2, 3], 0.25, persons)
    shuffled = rng.permutation(30)
    other = rank_scores(values[shuffled], [0, 1, 2, 3], 0.25, 1000 - 7 * persons[shuffled])
    assert other.parts.tolist() == expected.parts.tolist()


def largest_move(scores_of, data):
    """Over all neighbours: lists of as many units that differ in one place."""
    scored = {units: scores_of(units) for units in data}
    moves = [
        np.abs(scored[a].parts - scored[b].parts).max() / scored[a].per_one
        for a, b in itertools.combinations(data, 2)
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1
    ]
    return max(moves)


GRID = [0.0, 1.0, 2.0]
POINTS = (-0.5, 0.5, 1.0, 3.0)


@pytest.mark.parametrize("q", [0.05, 0.5, 0.9])
def test_replacing_a_record_moves_a_score_by_1_at_most(q):
    data = list(itertools.product(POINTS, repeat=3))
    assert largest_move(lambda units: rank_scores(np.array(units), GRID, q), data) == 1
    half = largest_move(lambda units: _twice_as_fine(rank_scores(np.array(units), GRID, q)), data)
    assert half == 2  # the test sees a factor that is wrong


@pytest.mark.parametrize("q", [0.05, 0.5, 0.9])
def test_one_unit_more_moves_scores_less_far_apart(q):
    """By 2 max(q, 1 - q), where a replaced one moves them by 2."""
    values = [(-0.5,), (3.0,), (0.5, 3.0), (-0.5, 0.5, 1.0), (0.5,) * 2]
    apart, others = [], ([], [(1.5,)] * 79, [(0.5,), (1.5,)] * 20, [(-0.5,)] * 39 + [(1.5,)] * 3)
    edges = (-1.0, 0.0, 1.0, 2.0, 3.0)
    for units in ((*few, *many) for few in itertools.product(values, repeat=3) for many in others):
        owners = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
        flat, kept = np.concatenate(units), owners > 0
        more, fewer = (
            rank_scores(*each) for each in ((flat, edges, q, owners), (flat[kept], edges, q, owners[kept]))
        )
        apart.append(np.ptp(more.parts - fewer.parts) / more.per_one)
    half = statistic("quantile").added((0.0, q, -1.0, 1.0, 9.0))
    assert max(apart) == pytest.approx(2 * half, abs=1e-12)
    assert half == max(q, 1 - q)


@pytest.mark.parametrize(
    ("name", "options", "half"), [("choice", (), 0.5), ("quantile", (0.0, 0.9, -1.0, 1.0, 9.0), 0.9)]
)
def test_where_units_are_added_the_draw_is_as_much_sharper(name, options, half):
    assert Person(relation="add_remove").half_range(name, options) == half
    assert RECORD.half_range(name, options) == 1
    scores, z = torch.tensor([[-2 * PER_ONE, -PER_ONE]]).repeat(20_000, 1), torch.full((20_000, 1), 2.0)
    noise = torch.from_numpy(np.random.default_rng(5).standard_normal((20_000, 1)))
    found = drawn(scores, z, half, SiloGaussian(), lambda: noise)
    expected = special.expit(float(epsilon_of(0.5)) / half / 2)
    assert stats.binomtest(int(found.sum()), 20_000, expected).pvalue > FALSE_ALARM
    assert (
        stats.binomtest(int(found.sum()), 20_000, special.expit(float(epsilon_of(0.5)) / 2)).pvalue
        < FALSE_ALARM
        or half > 0.8
    )


def _twice_as_fine(scores):
    return Scores(2 * scores.parts, scores.per_one)


@pytest.mark.parametrize("q", [0.05, 0.5, 0.9])
def test_replacing_a_person_of_any_number_of_values_moves_a_score_by_1_at_most(q):
    persons = [(-0.5,), (3.0,), (0.5, 3.0), (-0.5, 0.5, 1.0), (-0.5,) * 7, (3.0,) * 7, (0.5,) * 2 + (3.0,)]
    data = list(itertools.product(persons, repeat=3))

    def flat(units):
        return np.concatenate(units), np.repeat(np.arange(len(units)), [len(unit) for unit in units])

    def by_person(units):
        values, owners = flat(units)
        return rank_scores(values, GRID, q, owners)

    assert largest_move(by_person, data) == 1
    assert largest_move(lambda units: rank_scores(flat(units)[0], GRID, q), data) > 2  # records as units


@pytest.mark.parametrize("last", [[], [1.0], [1.0, 1.0], [2.0, 1.0], [1.0, math.nan], [1.0, math.inf]])
def test_edges_are_at_least_three_increasing_numbers(last):
    with pytest.raises(InputError, match=r"^edges: .*at least three finite numbers, increasing"):
        rank_scores(TEN, [0.0, *last], 0.5)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, math.nan, 1 / 3, 0.1234567])
def test_q_is_a_decimal_number_between_0_and_1(q):
    with pytest.raises(InputError, match=r"^q: .*between 0 and 1, of at most six digits"):
        rank_scores(TEN, [0, 1, 2], q)


# the samplers

# Many against one, which tells scales apart best, and one that is hardly ever chosen.
SCORES = Scores(np.array([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 10, -4000, 0, 3]), 2)
EPSILON = 1.3


def p_value(counts, epsilon):
    """Of drawing `counts` at epsilon; candidates expected less than once count with the best one."""
    p = law_of(SCORES, epsilon)
    expected = p * counts.sum()
    rare = expected < 1
    counts, best = counts.astype(float), p.argmax()
    counts[best] += counts[rare].sum()
    expected[best] += expected[rare].sum()
    return stats.chisquare(counts[~rare], expected[~rare]).pvalue


def counted(draw, draws):
    return np.bincount([draw() for _ in range(draws)], minlength=len(SCORES.parts))


@pytest.mark.parametrize("draws", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_exact_draws_follow_the_law_and_no_other_scale(draws):
    counts = counted(lambda: chosen_exactly(SCORES, EPSILON), draws)
    assert p_value(counts, EPSILON) > FALSE_ALARM
    for wrong in (EPSILON * 1.2, EPSILON / 1.2, EPSILON * 2, EPSILON / 2):
        assert p_value(counts, wrong) < FALSE_ALARM


def test_a_simulation_chooses_by_the_cumulative_probabilities():
    edges = np.cumsum(law_of(SCORES, EPSILON))
    assert chosen(SCORES, EPSILON, 0.0) == 0
    assert chosen(SCORES, EPSILON, 1 - 2**-53) == 13
    for i, after in itertools.pairwise([*range(11), 12, 13]):  # the score of 11 is as good as never drawn
        assert chosen(SCORES, EPSILON, edges[i] - 1e-9) == i
        assert chosen(SCORES, EPSILON, edges[i] + 1e-9) == after


@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 0.7, 1.3, 5.0])
def test_exact_draws_never_use_a_larger_epsilon(monkeypatch, epsilon):
    used = []
    make = pytest.importorskip("opendp.measurements").make_noisy_max

    def spied(domain, metric, measure, scale):
        used.append(scale)
        return make(domain, metric, measure, scale)

    monkeypatch.setattr("opendp.measurements.make_noisy_max", spied)
    for per_one in (1, 3, 20 << 20):
        chosen_exactly(Scores(np.array([0, 1]), per_one), epsilon)
        drawn_with = Fraction(2 * per_one) / Fraction(used[-1])
        assert Fraction(epsilon) * (1 - Fraction(1, 1 << 51)) < drawn_with <= Fraction(epsilon)


def test_the_library_agrees_on_what_its_scale_means():
    """It states rho = epsilon^2 / 8 under zCDP for bounded range epsilon = 2 sensitivity / scale."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_max
    from opendp.measures import zero_concentrated_divergence
    from opendp.metrics import linf_distance

    space = vector_domain(atom_domain(T="i64")), linf_distance(T="i64")
    per_one, epsilon = 20, 0.8
    draw = make_noisy_max(*space, zero_concentrated_divergence(), 2 * per_one / epsilon)
    assert draw.map(per_one) == pytest.approx(epsilon**2 / 8)


def test_scores_that_fill_64_bits_are_drawn_from():
    far = Scores(np.array([-(2**62), 0, -(2**62)]), 1 << 20)
    assert chosen_exactly(far, 0.5) == 1
    assert chosen(far, 0.5, 0.5) == 1


def test_the_module_loads_no_sampler():
    heavy = (
        "import sys, fedsim.privacy.exponential; print([m for m in ('opendp', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# bounds on contributions that have exact optima: the formulas, beside the choice of such a bound


@pytest.mark.parametrize(
    ("epsilon", "best", "variance"), [(0.5, 1, 0.303819), (1, 1.361702, 0.134286), (2, 3.2, 0.0735294)]
)
def test_the_weights_of_a_mean_with_least_variance(epsilon, best, variance):
    """Person u's s_u values weigh min(h, s_u) / (s_u n_h) each; the noise is Laplace, on the largest sum."""
    sizes = np.array([1, 1, 2, 4, 8, 16])

    def error(h):
        weight = np.minimum(h, sizes) / np.minimum(h, sizes).sum()  # a person's, together
        return (weight**2 / sizes).sum() + 2 * (weight.max() / epsilon) ** 2

    def balance(h):  # falls; each person's term is in [0, 1], so that replacing one moves it by 1
        return np.maximum(1 - h / sizes, 0).sum() - h * 2 / epsilon**2

    grid = np.linspace(1, 16, 150_001)
    errors = [error(h) for h in grid]
    assert grid[np.argmin(errors)] == pytest.approx(best, abs=1e-3)
    assert error(best) == pytest.approx(variance, abs=1e-6)
    assert balance(best) == pytest.approx(0, abs=1e-5) or (best == 1 and balance(1) < 0)


def test_what_some_data_attain_is_below_what_is_guaranteed_beside_choices():
    """A choice costs less than a Gaussian release of its mu, so that it is left out of the lower bound."""
    batch = WithReplacement(0.1)
    census = ((Release(batch, 1.0), 3), (Release(FULL, 1.0, drawn=True), 5))
    below = attainable.epsilon(census, 100, 2.0, 1e-5)
    assert 0 < below < cost.compose(census, 100).epsilon(2.0, 1e-5)
    assert below == attainable.epsilon(census[:1], 100, 2.0, 1e-5)
