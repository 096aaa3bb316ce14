"""The oracle that reveals most: against a library's composition, sampling by hand, and edges."""

from __future__ import annotations

import math
from itertools import product

import pytest
from dp_accounting.pld import common, privacy_loss_distribution

from benchmarks.thesis.audit.sum_oracle import Call, worst_epsilon
from fedsim.protocol.batch import FULL, Fresh, Subsample


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"), [(0.1, 0.0, 30), (0.5, 1e-7, 10), (1.0, 1e-8, 5), (0.02, 1e-9, 900)]
)
def test_full_sums_compose_as_the_library_has_it(epsilon: float, delta: float, count: int) -> None:
    one = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta), value_discretization_interval=epsilon / 100
    )
    expected = one.self_compose(count).get_epsilon_for_delta(1e-6)
    assert worst_epsilon([Call(epsilon, delta, count, FULL, 1.0)], 10, 1e-6) == pytest.approx(expected, 1e-6)


def test_two_kinds_of_sums_compose() -> None:
    def one(epsilon: float) -> privacy_loss_distribution.PrivacyLossDistribution:
        parameters = common.DifferentialPrivacyParameters(epsilon, 1e-8)
        return privacy_loss_distribution.from_privacy_parameters(
            parameters, value_discretization_interval=0.001
        )

    both = one(0.3).self_compose(7).compose(one(0.05).self_compose(40))
    calls = [Call(0.3, 1e-8, 7, FULL, 1.0), Call(0.05, 1e-8, 40, FULL, 2.0)]
    assert worst_epsilon(calls, 10, 1e-6) == pytest.approx(both.get_epsilon_for_delta(1e-6), rel=1e-6)


def test_disjoint_batches_cost_one_sum() -> None:
    assert worst_epsilon([Call(2.0, 1e-6, 20, Fresh(0.05), 1.0)], 100, 1e-6) == pytest.approx(2.0)


def test_a_rare_record_is_told_apart_as_by_amplification() -> None:
    # One pure response, and nothing is given away in delta: ln(1 + q (e^eps - 1)) exactly.
    for rate in (Call(1.0, 0.0, 1, Subsample(0.1), 1.0), Call(1.0, 0.0, 1, FULL, 1.0, present=0.1)):
        found = worst_epsilon([rate], 100, 1e-12)
        assert found == pytest.approx(math.log(1 + 0.1 * (math.e - 1)), abs=1e-6)


def test_sampled_responses_compose_as_their_sequences_do() -> None:
    rate, epsilon, delta, count, target = 0.3, 0.8, 1e-3, 4, 0.02
    yes, no = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    absent = {"yes": (1 - delta) * no, "no": (1 - delta) * yes, "absent": delta, "there": 0.0}
    surely = {"yes": (1 - delta) * yes, "no": (1 - delta) * no, "absent": 0.0, "there": delta}
    there = {each: (1 - rate) * absent[each] + rate * surely[each] for each in absent}

    def profile(at: float) -> float:
        sequences = product(absent, repeat=count)
        chances = (
            (math.prod(there[each] for each in one), math.prod(absent[each] for each in one))
            for one in sequences
        )
        return sum(max(0.0, p - math.exp(at) * q) for p, q in chances)

    found = worst_epsilon([Call(epsilon, delta, count, Subsample(rate), 1.0)], 10, target)
    # It leaves out what failures of an absent record's responses add: a bound from below, by next to nothing.
    assert profile(found) >= target * (1 - 1e-6)
    assert profile(found + 0.01) < target


def test_what_fails_more_often_than_delta_has_no_epsilon() -> None:
    assert worst_epsilon([Call(0.1, 1e-6, 3, FULL, 1.0)], 10, 1e-6) == math.inf
