"""Whole messages in random order: a silo of many records has its own noise's price, a lone record less."""

from math import inf

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.shuffled_attack import attained

from fedsim.common.errors import Refused
from fedsim.privacy import calibrate, cost
from fedsim.privacy.calibrate import Budget
from fedsim.privacy.shuffled_gaussian import ShuffledGaussian
from fedsim.privacy.silo_gaussian import SiloGaussian
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.plan import Census, Release

DELTA = 1e-6
ONCE: Census = ((Release(FULL, 1.0), 1),)
PEOPLE = ShuffledGaussian(1000, single_records=True)


def test_noise_is_the_silos_own() -> None:
    rows = np.empty((2, 5))
    PEOPLE.fill([np.random.default_rng(silo) for silo in (3, 4)], rows)
    sent, own = torch.ones(2, 5, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64)
    z = torch.full((2, 1), 3.0, dtype=torch.float64)
    PEOPLE.perturb(sent, 2.0, z, 2.0, 0.5, lambda: torch.from_numpy(rows))
    SiloGaussian().perturb(own, 2.0, z, 2.0, 0.5, lambda: torch.from_numpy(rows))
    torch.testing.assert_close(sent * PEOPLE.step(0.5), own)
    PEOPLE.perturb(sent, 2.0, z, 2.0, 0.0, lambda: torch.from_numpy(rows))  # at clip 0 no message stands out
    torch.testing.assert_close(sent, 12 * torch.from_numpy(rows))
    assert PEOPLE.step(0.5) == 0.5


@pytest.mark.parametrize("mechanism", [ShuffledGaussian(1000), PEOPLE])
def test_silos_of_many_records_pay_for_their_own_noise(mechanism: ShuffledGaussian) -> None:
    """Never by the epsilon of one record, however many silos there are."""
    for census in (ONCE, ((Release(Subsample(0.1), 1.0), 5),)):
        cases = [(50, 2.0, DELTA), (2, 1.0, DELTA)]
        assert mechanism.epsilons(census, cases) == cost.epsilons(census, cases)
        assert mechanism.colluding_epsilons(census, cases) == cost.epsilons(census, cases)


def test_one_record_a_silo_is_not_claimed_to_hide_unless_all_silos_are() -> None:
    case = [(1, 2.0, DELTA)]
    assert ShuffledGaussian(1000).epsilons(ONCE, case) == cost.epsilons(ONCE, case)


MOST = [(1.5, 1000, 0.11), *((z, 1000, 0.1) for z in (2.0, 3.0, 5.0, 8.0))]


@pytest.mark.parametrize(
    ("z", "silos", "most"), [*MOST, pytest.param(1.25, 5000, 0.1, marks=pytest.mark.slow)]
)
def test_no_claim_is_below_what_the_worst_pair_attains(z: float, silos: int, most: float) -> None:
    """All other silos at -C, the target at +C against -C. A claim a seventh as large would be caught."""
    people, own = ShuffledGaussian(silos, single_records=True), cost.epsilons(ONCE, [(1, z, DELTA)])
    (claimed,) = people.epsilons(ONCE, [(1, z, DELTA)])
    assert attained(1 / (2 * z), silos, claimed) < DELTA
    assert attained(1 / (2 * z), silos, 0.15 * claimed) > DELTA
    assert claimed < most * own[0]
    assert people.colluding_epsilons(ONCE, [(1, z, DELTA)]) == own


def test_fewer_honest_senders_hide_less() -> None:
    found = [
        ShuffledGaussian(1000, honest, single_records=True).epsilons(ONCE, [(1, 2.0, DELTA)])[0]
        for honest in (1.0, 0.5, 0.1, 0.001)
    ]
    assert found == sorted(found)
    assert found[0] < found[-1] == cost.epsilon(ONCE, 1, 2.0, DELTA)


def test_where_nothing_hides_the_own_price_is_left() -> None:
    for z, delta in ((0.2, DELTA), (2.0, 1e-12)):
        assert PEOPLE.epsilons(ONCE, [(1, z, delta)]) == cost.epsilons(ONCE, [(1, z, delta)])
    assert PEOPLE.epsilons(ONCE, [(1, 0.0, DELTA)]) == [inf]
    assert PEOPLE.epsilons((), [(1, 1.0, DELTA)]) == [0.0]


@pytest.mark.slow  # twenty prices
def test_noise_keeps_the_budget_and_is_less_than_the_own_price_asks_for() -> None:
    rounds: Census = ((Release(FULL, 1.0), 10),)
    budgets = [Budget(1, 0.5, DELTA)]
    (z,) = PEOPLE.noise_multipliers(rounds, budgets, 1e4)
    (own,) = calibrate.noise_multipliers(rounds, budgets, 1e4)
    assert z < 0.2 * own
    assert 0.4 < PEOPLE.epsilons(rounds, [(1, z, DELTA)])[0] <= 0.5
    assert PEOPLE.noise_multipliers(rounds, [Budget(1, inf, DELTA)], 1e4) == [0.0]
    with pytest.raises(Refused, match="plan costs"):
        PEOPLE.noise_multipliers(rounds, budgets, 0.5)
    assert ShuffledGaussian(1000).noise_multipliers(rounds, budgets, 1e4) == [own]


def test_multipliers_of_lighter_silos() -> None:
    hospitals = ShuffledGaussian(1000)
    assert hospitals.effective(2.0, 0.5) == 4
    assert hospitals.common(4.0, 0.5) == 2
    assert hospitals.effective(2.0, 0.0) == inf
    for r in (0.0, 0.1, 1.0):  # the messages that hide a person's are no nearer at a smaller clip
        assert PEOPLE.effective(2.0, r) == PEOPLE.common(2.0, r) == 2
    assert PEOPLE.colluding(3.0) == 3
    with refused("pool_min", 0):
        ShuffledGaussian(0)
    with refused("honest_fraction", 0.0):
        ShuffledGaussian(5, 0.0)
