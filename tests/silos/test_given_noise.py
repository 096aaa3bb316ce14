"""Noise that is given is priced like any other: a silo adds it only if its true cost is within the budget."""

from math import inf

import pytest

from fedsim.common.errors import Refused
from fedsim.mechanisms.registry import GAUSSIAN
from fedsim.privacy import cost
from fedsim.protocol.batch import FULL, Batch, Fresh, Subsample
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Ask, Plan, QueryShape
from fedsim.protocol.terms import Terms
from silos.admission import admit

LIMITS = Limits()


def plan(batch: Batch = FULL, rounds: int = 4) -> Plan:
    return Plan(((Ask(batch, (QueryShape("gradient", 1, 1.0),)),),) * rounds)


def terms(z: float | None, epsilon: float = 5.0, name: str = "a") -> Terms:
    return Terms(name, 100, epsilon, 1e-5, range(4), z)


@pytest.mark.parametrize("batch", [FULL, Subsample(0.2), Fresh(0.25)])
def test_given_noise_is_added_and_priced_truly(batch: Batch) -> None:
    (admitted,) = admit(plan(batch), [terms(3.0, inf)], GAUSSIAN, LIMITS)
    assert admitted.noise_multiplier == 3.0
    assert admitted.epsilon_guaranteed == cost.epsilon(plan(batch).census(), 100, 3.0, 1e-5)


def test_the_budget_binds_to_the_last_digit() -> None:
    true = cost.epsilon(plan().census(), 100, 3.0, 1e-5)
    assert admit(plan(), [terms(3.0, true)], GAUSSIAN, LIMITS)[0].epsilon_guaranteed == true
    with pytest.raises(
        Refused, match=r"silo 'b': plan costs epsilon .* given noise multiplier 3; its budget"
    ):
        admit(plan(), [terms(9.0, true), terms(3.0, true * (1 - 1e-9), "b")], GAUSSIAN, LIMITS)


@pytest.mark.parametrize("z", [-1.0, 2e4, inf, float("nan")])
def test_noise_out_of_bounds_is_refused(z: float) -> None:
    with pytest.raises(Refused, match=r"silo 'a': noise multiplier .* is not within \[0, 10000\]"):
        admit(plan(), [terms(z)], GAUSSIAN, LIMITS)


def test_no_noise_costs_everything() -> None:
    assert admit(plan(), [terms(0.0, inf)], GAUSSIAN, LIMITS)[0].epsilon_guaranteed == inf
    with pytest.raises(Refused, match="costs epsilon inf"):
        admit(plan(), [terms(0.0)], GAUSSIAN, LIMITS)


def test_batches_that_cannot_be_disjoint_are_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"silo 'a': plan draws 200 fresh records, the silo has 100"):
        admit(plan(Fresh(0.5)), [terms(3.0)], GAUSSIAN, LIMITS)


@pytest.mark.parametrize("z", [None, 3.0])
def test_a_refusal_speaks_of_the_silo_it_names(z: float | None) -> None:
    """Several silos cannot carry the plan; name, number of records and budget belong to the same one."""
    batches = [Terms(name, n, 5.0, 1e-5, range(4), z) for name, n in (("a", 4), ("b", 102), ("c", 80))]
    with pytest.raises(Refused, match=r"silo 'a': plan draws 8 fresh records, the silo has 4"):
        admit(plan(Fresh(0.5)), batches, GAUSSIAN, LIMITS)
    poor = [Terms(name, 100, epsilon, 1e-12, range(4)) for name, epsilon in (("a", 2e-7), ("b", 1e-7))]
    with pytest.raises(Refused, match=r"silo 'a': plan costs .* its budget is 2e-07"):
        admit(plan(), poor, GAUSSIAN, LIMITS)


def test_a_cohort_does_not_mix_given_and_found_noise() -> None:
    with pytest.raises(Refused, match="of some silos of one cohort is given"):
        admit(plan(), [terms(3.0), terms(None, name="b")], GAUSSIAN, LIMITS)
