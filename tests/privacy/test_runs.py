"""Several plans on the same records: closed forms, and what must not be saved."""

import math

import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from support.dp_events import pld_event

from fedsim.common.errors import Refused
from fedsim.privacy import cost, gaussian
from fedsim.privacy.cost import compose_runs
from fedsim.protocol.batch import FULL, Batch, Fresh, Poisson, Subsample, WithReplacement
from fedsim.protocol.plan import Census, Release

DELTA = 1e-5


def census(*parts: tuple[Release, int]) -> Census:
    return tuple(sorted(parts, key=repr))


def test_full_plans_of_different_lengths_add_their_squares() -> None:
    plans = [census((Release(FULL, 1.0), rounds)) for rounds in (5, 5, 20)]
    plans.append(census((Release(FULL, 2.0), 3)))
    mu = math.sqrt(5 + 5 + 20 + 4 * 3) / 7.0
    assert compose_runs(plans, 50).epsilon(7.0, DELTA) == pytest.approx(
        float(gaussian.epsilon(mu, DELTA)), rel=1e-9
    )


def test_fresh_batches_are_saved_within_a_plan_and_not_between_plans() -> None:
    plan = census((Release(Fresh(0.1), 1.0), 10))
    assert compose_runs([plan], 50).epsilon(3.0, DELTA) == cost.epsilon(plan, 50, 3.0, DELTA)
    four = compose_runs([plan] * 4, 50).epsilon(3.0, DELTA)
    assert four == pytest.approx(float(gaussian.epsilon(math.sqrt(4) / 3.0, DELTA)), rel=1e-9)
    mixed = [plan, census((Release(Fresh(0.5), 2.0), 1), (Release(FULL, 1.0), 6))]
    assert compose_runs(mixed, 50).weight == pytest.approx(math.sqrt(1 + 4 + 6), rel=1e-12)


def test_one_plan_that_draws_too_many_fresh_records_is_refused_and_several_that_do_not_are_fine() -> None:
    plan = census((Release(Fresh(0.6), 1.0), 1))
    assert compose_runs([plan, plan], 10).weight == pytest.approx(math.sqrt(2))
    with pytest.raises(Refused, match="fresh units"):
        compose_runs([census((Release(Fresh(0.6), 1.0), 2))], 10)


@pytest.mark.parametrize("batch", [Subsample(0.2), Poisson(0.2), WithReplacement(0.2)])
def test_sampled_plans_cost_what_one_long_plan_does(batch: Subsample | Poisson | WithReplacement) -> None:
    release = Release(batch, 1.0)
    several = compose_runs([census((release, 4)), census((release, 6)), census((release, 4))], 40)
    together = cost.epsilon(census((release, 14)), 40, 1.5, DELTA)
    assert several.epsilon(1.5, DELTA) == pytest.approx(together, rel=1e-9)
    assert together > 1.1 * cost.epsilon(census((release, 6)), 40, 1.5, DELTA)


@pytest.mark.parametrize(
    "batches", [(FULL, FULL), (Poisson(0.1), Poisson(0.1)), (Poisson(0.3), FULL)], ids=str
)
def test_two_candidates_cost_what_dp_accounting_says(batches: tuple[Batch, Batch]) -> None:
    """Three runs of 6 rounds and two of 15, of double weight: one sequence of releases for the library."""
    n, z, plans = 40, 5.0, ((6, 1.0, 3), (15, 2.0, 2))
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4)
    runs: list[Census] = []
    for batch, (rounds, weight, times) in zip(batches, plans, strict=True):
        runs += [census((Release(batch, weight), rounds))] * times
        accountant.compose(pld_event(batch, n, z / weight), rounds * times)
    expected = accountant.get_epsilon(DELTA)
    assert compose_runs(runs, n).epsilon(z, DELTA) == pytest.approx(expected, rel=2e-3)


def test_nothing_costs_nothing() -> None:
    assert compose_runs([], 5).epsilon(1.0, DELTA) == 0
    assert compose_runs([(), ()], 5).epsilon(0.0, DELTA) == 0
