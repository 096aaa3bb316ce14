"""What a plan costs the lifetime account, against the accountant of plans and of runs."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import Refused
from fedsim.privacy.cost import compose, compose_runs
from fedsim.privacy.exponential import epsilon_of, mu_of
from fedsim.privacy.registry import GAUSSIAN
from fedsim.privacy.shuffled_binomial import ShuffledBinomial
from fedsim.privacy.silo_gaussian import NoMechanism
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.protocol.batch import FULL, Fresh, Part, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Admitted, Ask, Plan, QueryShape, Terms
from fedsim.protocol.statistics import Extent
from silos.vault.account import FREE, Cost, Price, Stretch, total
from silos.vault.admission import price

N, DELTA = 1000, 1e-6
SHAPE = st.builds(QueryShape, st.just("gradient"), st.just(1), st.floats(0.1, 10))
ASK = st.builds(
    Ask, st.sampled_from([FULL, Fresh(0.01), Fresh(0.02)]), st.lists(SHAPE, min_size=1, max_size=3).map(tuple)
)
ON_PARTS = st.builds(
    Ask,
    st.sampled_from([FULL, Part(0, 0.3), Part(0.3, 1)]),
    st.lists(SHAPE, min_size=1, max_size=3).map(tuple),
)
PLAN = st.sampled_from([ASK, ON_PARTS]).flatmap(
    lambda ask: st.builds(
        Plan, st.lists(st.lists(ask, max_size=2).map(tuple), min_size=1, max_size=8).map(tuple)
    )
)


def admitted(plan: Plan, z: float, rounds: list[int] | None = None, epsilon: float = 0.5) -> Admitted:
    own = list(range(len(plan.rounds))) if rounds is None else rounds
    return Admitted(Terms("silo", N, 1.0, DELTA, own), z, epsilon, plan.num_queries(own))


def test_a_choice_costs_an_account_the_mu_squared_that_its_draw_is_worth():
    """Though the plan's own epsilon is that of its profile, which is less."""
    z, query = 2.0, QueryShape("quantile", 0, 0.5, (0.0, 0.5, -1.0, 1.0, 9.0))
    plan = Plan(((Ask(FULL, (query, QueryShape("gradient", 1, 0.25))),),) * 3)
    found = price(plan, admitted(plan, z), GAUSSIAN).of([0, 2])
    drawn = float(mu_of(epsilon_of(1 / (z * 0.5))))
    assert found.mu_sq == pytest.approx(2 * (drawn**2 + (1 / (z * 0.25)) ** 2), rel=1e-9)
    assert found == Cost(mu_sq=found.mu_sq)


@settings(max_examples=30)
@given(PLAN, st.floats(0.3, 100), st.randoms(use_true_random=False))
def test_a_gaussian_plan_costs_mu_squared_of_the_rounds_that_were_paid_for(plan, z, rng):
    """FULL adds, parts within themselves, of Fresh batches or parts the largest counts: as `compose` has it,
    from above.
    """
    own = sorted(rng.sample(range(len(plan.rounds)), rng.randint(1, len(plan.rounds))))
    paid = rng.sample(own, rng.randint(0, len(own)))
    found = price(plan, admitted(plan, z, own), GAUSSIAN)
    assert found.rounds == own
    for rounds, cost in ((paid, found.of(paid)), (own, found.whole)):
        exact = (compose(plan.census(rounds), N).weight / z) ** 2
        assert exact <= cost.mu_sq <= exact * (1 + 1e-11)
        assert cost == Cost(mu_sq=cost.mu_sq)
    assert Price.from_tree(json.loads(json.dumps(found.tree()))) == found


@settings(max_examples=30)
@given(st.lists(PLAN, min_size=1, max_size=4))
def test_runs_on_the_same_records_add_up_also_of_fresh_batches(plans):
    """A record is in one batch of each run, so that maxima add over runs."""
    costs = [price(plan, admitted(plan, 2.0), GAUSSIAN).whole for plan in plans]
    together = (compose_runs([plan.census() for plan in plans], N).weight / 2.0) ** 2
    assert together * (1 - 1e-12) <= total(costs).mu_sq <= together * (1 + 1e-11)


@pytest.mark.parametrize("batch", [Subsample(0.1), Poisson(0.1), WithReplacement(0.1)])
def test_a_sampled_plan_keeps_its_whole_price_from_its_first_round_on(batch):
    query = (QueryShape("gradient", 1, 1.0),)
    plan = Plan(((Ask(FULL, query),), (Ask(batch, query),), (Ask(FULL, query),)))
    found = price(plan, admitted(plan, 2.0), GAUSSIAN)
    for paid in ([0], [1], [0, 1, 2]):
        assert found.of(paid) == found.whole == Cost(epsilon=0.5, delta=DELTA)
    assert found.of([]) == FREE


def test_a_batch_of_all_records_is_no_sample():
    plan = Plan(((Ask(Subsample(1.0), (QueryShape("gradient", 1, 1.0),)),),))
    assert price(plan, admitted(plan, 2.0), GAUSSIAN).whole.mu_sq == pytest.approx(0.25, rel=1e-11)


class Discrete:
    """As a mechanism with noise on a grid: 1e-20 a release."""

    private = True
    squares_add = True

    def distance(self, census: tuple[tuple[object, int], ...], z: float) -> float:
        return sum(count for _, count in census) * 1e-20 / z


def test_distances_of_paid_rounds_add():
    ask = Ask(FULL, (QueryShape("gradient", 1, 1.0),))
    plan = Plan(((ask, ask), (ask,), ()))
    found = price(plan, admitted(plan, 2.0), Discrete())
    assert found.of([0]).distance == pytest.approx(1e-20)
    assert found.whole.distance == pytest.approx(1.5e-20)
    assert found.whole.distance >= 1.5e-20


def test_without_noise_there_is_no_price():
    plan = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),),))
    with pytest.raises(Refused):
        price(plan, admitted(plan, 2.0), NoMechanism())
    with pytest.raises(Refused):
        price(plan, admitted(plan, 0.0), GAUSSIAN)


def test_too_many_fresh_records_have_no_price():
    ask = Ask(Fresh(0.6), (QueryShape("gradient", 1, 1.0),))
    plan = Plan(((ask,), (ask,)))
    with pytest.raises(Refused, match="fresh"):
        price(plan, admitted(plan, 2.0), GAUSSIAN)


def test_a_round_outside_the_plan_has_no_price():
    found = Price((Stretch(2, 3, 0.1, 0.0, 0.0), Stretch(7, 1, 0.2, 0.0, 0.0)))
    assert found.rounds == [2, 3, 4, 7]
    for outside in (-1, 0, 1, 5, 6, 8):
        with pytest.raises(Refused, match="not in the run's plan"):
            found.of([2, outside])


def test_noise_that_is_not_gaussian_has_the_whole_price_of_its_accountant():
    plan = Plan(((Ask(FULL, (QueryShape("gradient", 1, 1.0),)),),) * 3)
    own = admitted(plan, 3.0)
    found = price(plan, own, ShuffledBinomial(10, 3, 1.0, 128))
    assert found.of([0]) == found.whole == Cost(epsilon=own.epsilon_guaranteed, delta=own.terms.delta)
    assert price(plan, own, SummedGaussian(Extent(10, 10), 3, 1.0)).whole.epsilon == 0
