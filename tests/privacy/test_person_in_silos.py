"""What one person pays who is in several silos, and the noise that keeps it within the budget."""

import math

import pytest

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian
from fedsim.privacy.grid import GridGaussian
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.privacy.summed_gaussian import SummedGaussian
from fedsim.protocol.batch import FULL, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Release, Terms
from fedsim.protocol.pool import Pool
from fedsim.protocol.statistics import Extent
from fedsim.protocol.unit import RECORD, Person
from fedsim.secagg.agreement import Sums
from silos.vault.admission import admit

N, DELTA = 400, 1e-5
EXTENT = Extent(5, 5)


def plan_of(batch, unit, rounds=6):
    return Plan(((Ask(batch, (QueryShape("gradient", 1, 1.0),)),),) * rounds, unit)


def admitted(batch, k, mechanism, epsilon=1.0, given=None):
    plan = plan_of(batch, Person(silos_per_person=k))
    (silo,) = admit(plan, [Terms("a", N, epsilon, DELTA, range(6), given)], mechanism, LIMITS)
    return plan.census(), silo


@pytest.mark.parametrize("batch", [FULL, Fresh(0.1), Poisson(0.1), Subsample(0.2), WithReplacement(0.1)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_silos_census_for_several_is_the_composition_of_their_plans(batch, k):
    census = (*plan_of(batch, RECORD).census(), (Release(FULL, 0.5), 2))
    several, expected = cost.compose(cost.together(census, k), N), cost.compose_runs([census] * k, N)
    assert several.weight == pytest.approx(expected.weight)
    assert dict(several.sampled) == dict(expected.sampled)
    assert k > 1 or cost.together(census, 1) == census


@pytest.mark.parametrize("mechanism", [SiloGaussian(), GridGaussian(EXTENT)], ids=["gaussian", "grid"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_silos_of_unsampled_plans_cost_the_budget_and_one_costs_mu_over_root_k(k, mechanism):
    census, silo = admitted(FULL, k, mechanism)
    (one,) = mechanism.epsilons(census, [(N, silo.noise_multiplier, DELTA)])
    assert silo.epsilon_guaranteed == one
    mu = math.sqrt(6) / silo.noise_multiplier
    assert float(gaussian.epsilon(math.sqrt(k) * mu, DELTA)) == pytest.approx(1.0, abs=2e-3)
    assert mu * math.sqrt(k) <= float(gaussian.mu(1.0, DELTA))


def test_a_person_in_two_and_three_silos_of_epsilon_1_has_the_closed_form():
    mu = float(gaussian.mu(1.0, 1e-6))
    costs = [float(gaussian.epsilon(math.sqrt(k) * mu, 1e-6)) for k in (1, 2, 3)]
    assert costs == pytest.approx([1.0, 1.45, 1.81], abs=0.006)


@pytest.mark.parametrize("batch", [Poisson(0.1), Subsample(0.2)])
def test_k_silos_of_sampled_plans_compose_to_the_budget(batch):
    census, silo = admitted(batch, 3, SiloGaussian())
    joint = cost.compose_runs([census] * 3, N).epsilon(silo.noise_multiplier, DELTA)
    assert 0.998 <= joint <= 1.0
    assert silo.epsilon_guaranteed < 0.7


def test_given_noise_must_keep_the_budget_of_several_silos():
    _, silo = admitted(FULL, 1, SiloGaussian())
    admitted(FULL, 1, SiloGaussian(), given=silo.noise_multiplier)
    with pytest.raises(Refused, match=r"plan costs epsilon 1\.46"):
        admitted(FULL, 2, SiloGaussian(), given=silo.noise_multiplier)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_under_a_common_noise_a_person_in_k_silos_moves_a_sum_k_times(k):
    """Square roots would be wrong: the silos' terms add up before there is any noise."""
    pool = Pool((N,) * 4, (0.25,) * 4, 4, 1.0)
    mechanism = SummedGaussian(EXTENT, 4, 1.0)
    plan = plan_of(FULL, Person(silos_per_person=k))
    terms = [Terms(name, N, 1.0, DELTA, range(6)) for name in "abcd"]
    silos = admit(plan, Sums(mechanism, pool).agreed(plan, terms), mechanism, LIMITS)
    mu = [math.sqrt(6) / silo.noise_multiplier for silo in silos]
    assert float(gaussian.epsilon(sum(mu[:k]), DELTA)) == pytest.approx(1.0, abs=5e-3)
