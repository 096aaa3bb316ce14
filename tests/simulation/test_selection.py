"""What silos agree to before private tuning."""

import math

import pytest

from fedsim.common.errors import Refused
from fedsim.privacy import gaussian
from fedsim.protocol.batch import FULL, Subsample
from fedsim.protocol.limits import Limits
from fedsim.protocol.plan import Release
from fedsim.simulation.selection import SelectionTerms, admit_selection

LONG, SHORT = ((Release(FULL, 1.0), 35),), ((Release(FULL, 1.0), 10),)
DELTA = 1e-5


def mu(z: float, releases: float) -> float:
    return float(gaussian.epsilon(math.sqrt(releases) / z, DELTA))


def test_each_silo_pays_for_all_candidates_and_the_total_is_the_larger_part() -> None:
    terms = [SelectionTerms("a", 30, 1.0, DELTA), SelectionTerms("b", 7, 8.0, DELTA)]
    runs = [LONG, LONG, SHORT]
    for silo in admit_selection([runs, runs], terms, Limits()):
        budget = silo.terms.epsilon
        assert silo.epsilon_training == pytest.approx(mu(silo.noise_multiplier, 35 + 35 + 10), rel=1e-9)
        assert silo.epsilon_scores == pytest.approx(mu(silo.score_noise_multiplier, 3), rel=1e-9)
        assert silo.epsilon == max(silo.epsilon_training, silo.epsilon_scores)
        assert budget * (1 - 1e-6) <= silo.epsilon_training <= budget
        assert budget * (1 - 1e-6) <= silo.epsilon_scores <= budget
        assert mu(silo.noise_multiplier, 35 + 10) < 0.9 * budget  # a candidate less would be cheaper


def test_sampled_plans_stay_within_the_budget_of_the_half() -> None:
    plan = ((Release(Subsample(0.1), 1.0), 20),)
    (silo,) = admit_selection([[plan] * 4], [SelectionTerms("a", 50, 2.0, DELTA)], Limits())
    assert 1.99 <= silo.epsilon_training <= 2.0
    (one,) = admit_selection([[plan]], [SelectionTerms("a", 50, 2.0, DELTA)], Limits())
    assert one.noise_multiplier < silo.noise_multiplier


def test_a_silo_that_takes_part_in_nothing_pays_for_its_scores_alone() -> None:
    (silo,) = admit_selection([[(), ()]], [SelectionTerms("a", 5, 1.0, DELTA)], Limits())
    assert (silo.noise_multiplier, silo.epsilon_training) == (0.0, 0.0)
    assert silo.epsilon == silo.epsilon_scores == pytest.approx(mu(silo.score_noise_multiplier, 2))


def test_without_a_budget_there_is_no_noise_and_no_guarantee() -> None:
    (silo,) = admit_selection([[LONG]], [SelectionTerms("a", 5, math.inf, DELTA)], Limits())
    assert (silo.noise_multiplier, silo.score_noise_multiplier, silo.epsilon) == (0.0, 0.0, math.inf)


def test_the_silo_that_cannot_afford_it_is_named() -> None:
    terms = [SelectionTerms("rich", 30, 5.0, DELTA), SelectionTerms("poor", 30, 0.05, DELTA)]
    affordable = Limits(max_noise_multiplier=500.0)
    admit_selection([[SHORT], [SHORT]], terms, affordable)
    with pytest.raises(
        Refused, match=r"silo 'poor', 40 runs to choose from: plan costs epsilon .* budget is 0\.05"
    ):
        admit_selection([[LONG] * 40] * 2, terms, affordable)
