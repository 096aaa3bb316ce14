"""The lifetime account: its caps keep the promise, and no history of runs gets past them."""

import math
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.common.errors import InputError, Refused
from fedsim.privacy import cost, gaussian
from fedsim.privacy.registry import GAUSSIAN
from fedsim.protocol.batch import FULL, Batch, Fresh, Subsample
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from silos.vault.account import Account, Caps, Cost, down, total, up
from silos.vault.admission import admit

SMALL = math.ulp(0.0)
BAD = [math.nan, math.inf, -math.inf, -1e-300, -1.0, SMALL, 2.2e-308, 1, True, None, "1"]
EPSILON = st.floats(0.01, 100)
DELTA = st.floats(1e-12, 0.1)
SHARE = st.one_of(st.just(0.0), st.floats(1e-9, 0.99))


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("field", ["mu_sq", "epsilon", "delta", "distance"])
def test_a_spend_that_is_no_finite_normal_number_is_refused(field, value):
    with pytest.raises(Refused):
        Cost(**{field: value})


@given(EPSILON, DELTA, SHARE, SHARE)
def test_the_caps_together_keep_the_promise(epsilon, delta, a, b):
    """Gaussian of mu_B at epsilon - epsilon_S, sampled plans, and (1 + e^epsilon) times the distance."""
    caps = Caps.of(epsilon, delta, a * epsilon, b * delta).total
    own = gaussian.profile(epsilon - caps.epsilon, math.sqrt(caps.mu_sq))
    everything = float(own) + caps.delta + (1 + math.exp(epsilon)) * caps.distance
    assert everything <= delta * (1 + 1e-12)
    assert everything >= delta * 0.99  # and does not waste it
    assert caps.distance > 0


def test_caps_at_a_known_point():
    caps = Caps.of(1.0, 1e-5)
    assert caps.total.mu_sq == pytest.approx(float(gaussian.mu(1.0, 0.999e-5)) ** 2, rel=1e-8)
    assert caps.total.epsilon == caps.total.delta == 0
    assert caps.total.distance == pytest.approx(1e-8 / (1 + math.e))
    assert Caps.from_tree(caps.tree()) == caps


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ((0.0, 1e-5), "lifetime.epsilon"),
        ((math.nan, 1e-5), "lifetime.epsilon"),
        ((math.inf, 1e-5), "lifetime.epsilon"),
        ((1.0, 0.0), "lifetime.delta"),
        ((1.0, 1.0), "lifetime.delta"),
        ((1.0, math.nan), "lifetime.delta"),
        ((1.0, 1e-5, 1.5), "lifetime.sampled.epsilon"),
        ((1.0, 1e-5, -0.1), "lifetime.sampled.epsilon"),
        ((1.0, 1e-5, 0.5, 1e-5), "lifetime.sampled.delta"),
        ((1.0, 1e-5, 0.5, math.nan), "lifetime.sampled.delta"),
    ],
)
def test_caps_out_of_bounds_are_named(numbers, field):
    with pytest.raises(InputError) as found:
        Caps.of(*numbers)
    assert found.value.field == field


NUMBER = st.one_of(st.just(0.0), st.floats(1e-300, 1.0), st.floats(1e-17, 1e-15))
COST = st.builds(Cost, mu_sq=NUMBER, epsilon=NUMBER, delta=NUMBER, distance=NUMBER)
CAPS = Caps(1.0, 0.5, Cost(1.0, 1.0, 1.0, 1.0))


@given(st.lists(st.tuples(COST, COST, st.booleans()), max_size=30))
def test_no_history_spends_more_than_the_caps(history):
    """Against sums of fractions: what fits is taken, what does not is refused, what returns can be used."""
    account, held = Account(CAPS), {}
    for number, (asked, used, closes) in enumerate(history):
        run, names = str(number), asked.tree()
        sums = {
            name: sum((Fraction(each.tree()[name]) for each in held.values()), Fraction(0)) for name in names
        }
        if all(sums[name] + Fraction(value) <= 1 for name, value in names.items()):
            account.reserve(run, asked)
            held[run] = asked
            if closes:
                held[run] = account.charge(run, used)
                assert held[run] == used.least(asked)
        else:
            with pytest.raises(Refused, match="lifetime budget"):
                account.reserve(run, asked)
        everything = total([*held.values()])
        assert all(Fraction(1) - sum(Fraction(c.tree()[n]) for c in held.values()) >= 0 for n in names)
        assert all(0 <= left <= 1 for left in account.left.tree().values())
        assert total([account.charged, account.reserved]).mu_sq >= everything.mu_sq


def test_many_tiny_spends_are_not_lost_in_rounding():
    """A float sum of 1 and thousands of 1e-17 is 1."""
    account = Account(CAPS)
    account.reserve("first", Cost(mu_sq=1.0 - 2**-53))
    for number in range(11):
        account.reserve(str(number), Cost(mu_sq=1e-17))
    with pytest.raises(Refused, match=r"mu\^2 of Gaussian plans"):
        account.reserve("last", Cost(mu_sq=1e-17))


@pytest.mark.parametrize("field", ["mu_sq", "epsilon", "delta", "distance"])
def test_the_caps_are_sharp_to_the_last_bit(field):
    account = Account(CAPS)
    account.reserve("half", Cost(**{field: 0.5}))
    with pytest.raises(Refused):
        account.reserve("more", Cost(**{field: math.nextafter(0.5, 1.0)}))
    account.reserve("other half", Cost(**{field: 0.5}))
    with pytest.raises(Refused):
        account.reserve("nothing is left", Cost(**{field: 1e-300}))
    account.reserve("free", Cost())


def test_a_run_reserves_once_and_is_charged_once():
    account = Account(CAPS)
    account.reserve("run", Cost(mu_sq=0.5))
    with pytest.raises(Refused):
        account.reserve("run", Cost(mu_sq=0.1))
    account.charge("run", Cost(mu_sq=0.25))
    with pytest.raises(Refused):
        account.charge("run", Cost())
    assert account.left.mu_sq == 0.75
    assert account.charged.mu_sq == 0.25


@given(st.fractions(min_value=0, max_value=10**6))
def test_rounding_goes_the_safe_way(value):
    assert Fraction(down(value)) <= value <= Fraction(up(value))
    assert float(value) == 0 or up(value) - down(value) <= 2 * math.ulp(float(value)) or value < 1e-300
    for found in (down(value), up(value)):
        Cost(mu_sq=found)  # a spend


# Noise that is given is priced like any other: a silo adds it only if its true cost is within the budget.

LIMITS = Limits()


def plan(batch: Batch = FULL, rounds: int = 4) -> Plan:
    return Plan(((Ask(batch, (QueryShape("gradient", 1, 1.0),)),),) * rounds)


def terms(z: float | None, epsilon: float = 5.0, name: str = "a") -> Terms:
    return Terms(name, 100, epsilon, 1e-5, range(4), z)


@pytest.mark.parametrize("batch", [FULL, Subsample(0.2), Fresh(0.25)])
def test_given_noise_is_added_and_priced_truly(batch):
    (admitted,) = admit(plan(batch), [terms(3.0, inf)], GAUSSIAN, LIMITS)
    assert admitted.noise_multiplier == 3.0
    assert admitted.epsilon_guaranteed == cost.epsilon(plan(batch).census(), 100, 3.0, 1e-5)


def test_the_budget_binds_to_the_last_digit():
    true = cost.epsilon(plan().census(), 100, 3.0, 1e-5)
    assert admit(plan(), [terms(3.0, true)], GAUSSIAN, LIMITS)[0].epsilon_guaranteed == true
    with pytest.raises(
        Refused, match=r"silo 'b': plan costs epsilon .* given noise multiplier 3; its budget"
    ):
        admit(plan(), [terms(9.0, true), terms(3.0, true * (1 - 1e-9), "b")], GAUSSIAN, LIMITS)


@pytest.mark.parametrize("z", [-1.0, 2e4, inf, float("nan")])
def test_noise_out_of_bounds_is_refused(z):
    with pytest.raises(Refused, match=r"silo 'a': noise multiplier .* is not within \[0, 10000\]"):
        admit(plan(), [terms(z)], GAUSSIAN, LIMITS)


def test_no_noise_costs_everything():
    assert admit(plan(), [terms(0.0, inf)], GAUSSIAN, LIMITS)[0].epsilon_guaranteed == inf
    with pytest.raises(Refused, match="costs epsilon inf"):
        admit(plan(), [terms(0.0)], GAUSSIAN, LIMITS)


def test_batches_that_cannot_be_disjoint_are_refused_by_name():
    with pytest.raises(Refused, match=r"silo 'a': plan draws 200 fresh units, the silo has 100"):
        admit(plan(Fresh(0.5)), [terms(3.0)], GAUSSIAN, LIMITS)


@pytest.mark.parametrize("z", [None, 3.0])
def test_a_refusal_speaks_of_the_silo_it_names(z):
    """Several silos cannot carry the plan; name, number of records and budget belong to the same one."""
    batches = [Terms(name, n, 5.0, 1e-5, range(4), z) for name, n in (("a", 4), ("b", 102), ("c", 80))]
    with pytest.raises(Refused, match=r"silo 'a': plan draws 8 fresh units, the silo has 4"):
        admit(plan(Fresh(0.5)), batches, GAUSSIAN, LIMITS)
    poor = [Terms(name, 100, epsilon, 1e-12, range(4)) for name, epsilon in (("a", 2e-7), ("b", 1e-7))]
    with pytest.raises(Refused, match=r"silo 'a': plan costs .* its budget is 2e-07"):
        admit(plan(), poor, GAUSSIAN, LIMITS)


def test_a_cohort_does_not_mix_given_and_found_noise():
    with pytest.raises(Refused, match="of some silos of one cohort is given"):
        admit(plan(), [terms(3.0), terms(None, name="b")], GAUSSIAN, LIMITS)
