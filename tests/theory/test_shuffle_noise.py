"""What the theorems in the shuffle model state, by hand; and a sum's least noise against its own cost."""

from __future__ import annotations

import math

import pytest

from benchmarks.thesis.audit.shuffle_noise import (
    ShuffledMessages,
    SummedMessages,
    SummedOnePass,
    SummedProxSGD,
    SummedProxSVRG,
    SummedRestarts,
    SummedSPIDER,
    published,
)
from benchmarks.thesis.audit.sum_oracle import OracleTheorem
from benchmarks.thesis.audit.true_cost import true_epsilon
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Fresh, Subsample
from fedsim.theory.theorem import Context, Theorem

CLAIM = Budget(100, 2.0, 1e-5)
LOG = math.log(1e5)
ONE_PASS = SummedOnePass(CLAIM, 3.0, 40, 10, 20, Fresh(0.05))
PROX_SGD = SummedProxSGD(CLAIM, 3.0, 40, 10, 20, Fresh(0.05), secret=True)
PROX_SVRG = SummedProxSVRG(CLAIM, 3.0, 40, 10, 5, 4, Subsample(0.25))
RESTARTS = SummedRestarts(CLAIM, 3.0, 40, 40, 8)
PRINTED = SummedSPIDER(CLAIM, 3.0, 40, 10, 64, 4, as_printed=True)
CORRECTED = SummedSPIDER(CLAIM, 3.0, 40, 10, 64, 4)


def stated(theorem: OracleTheorem) -> list[tuple[float, float, int, float]]:
    return [(call.epsilon, call.delta, call.count, call.clip) for call in theorem.calls()]


def near(*values: float) -> object:
    return pytest.approx(values, rel=1e-12)


def test_shuffled_messages_have_the_noise_of_theorem_38() -> None:
    theorem = ShuffledMessages(CLAIM, 3.0, 50, Subsample(0.01), silos=40, active=10)
    logs = math.log(50 * 100 / 40e-5) * math.log(50e5) * LOG
    assert theorem.sigma**2 == pytest.approx(9 * 50 * 10 * logs / (100**2 * 40**2 * 4))
    summed = SummedMessages(CLAIM, 3.0, 50, Subsample(0.01), silos=40, active=10)
    assert summed.sigma**2 == pytest.approx(10 * theorem.sigma**2)


def test_calls_are_those_of_the_theorems() -> None:
    assert stated(ONE_PASS) == [near(2.0, 1e-5, 20, 3.0)]
    assert stated(PROX_SGD) == [near(2 * 40 / 20, 1e-5, 20, 3.0)]
    assert PROX_SGD.calls()[0].rate(100) == 0.25
    # eps n N / (8 M K sqrt(4 E Q ln(2/delta))): 2 * 4000 / (8 * 250 sqrt(80 ln 2e5)).
    one = 4 / math.sqrt(80 * math.log(2e5))
    assert stated(PROX_SVRG) == [near(one, 1e-5 / 40, 5, 3.0), near(one, 1e-5 / 40, 20, 6.0)]
    assert [call.rate(100) for call in PROX_SVRG.calls()] == [1.0, 0.25]
    assert stated(RESTARTS) == [near(2 / 8, 1e-5 / 16, 8, 3.0)]


def test_spiders_gradients_get_the_whole_budget_each_as_printed_and_their_share_as_meant() -> None:
    whole = 2 * 40 / (40 * math.sqrt(2 * LOG))
    differences = near(whole / 8, 1e-5 / 128, 48, 6.0)
    assert stated(PRINTED) == [near(whole, 4 * 1e-5 / 128, 16, 3.0), differences]
    assert stated(CORRECTED) == [near(whole / 4, 4 * 1e-5 / 128, 16, 3.0), differences]
    # One phase: either way the one gradient has all of it.
    alone = [SummedSPIDER(CLAIM, 3.0, 40, 10, 64, 64, printed).calls()[0] for printed in (True, False)]
    assert alone[0].epsilon == alone[1].epsilon == pytest.approx(whole)


def test_gaussian_sums_keep_each_calls_promise_and_not_more() -> None:
    for theorem in (ONE_PASS, PROX_SVRG, CORRECTED):
        for call, noisy in zip(theorem.calls(), theorem.releases(), strict=True):
            assert noisy.batch == call.batch
            assert gaussian.epsilon(1 / noisy.multiplier, call.delta) == pytest.approx(call.epsilon, rel=1e-6)
            assert noisy.sensitivity == pytest.approx(2 * call.clip / call.batch.size(100))
    assert true_epsilon(ONE_PASS) == pytest.approx(2.0)


def failing(theorem: Theorem, kappa: float | None = None) -> list[str]:
    return [check.condition for check in theorem.conditions(Context(1, kappa)) if not check.holds]


@pytest.mark.parametrize(
    ("theorem", "conditions"),
    [
        (ONE_PASS, []),
        (SummedOnePass(Budget(100, 15.1, 0.5), 1.0, 4, 4, 2, FULL),
         ["eps <= 15", "delta < 1/2", "disjoint batches"]),
        (SummedProxSGD(Budget(100, 2.0, 1e-5), 1.0, 40, 40, 20, Fresh(0.05)), []),
        (PROX_SGD, ["M >= N min(eps/2, 1)"]),
        (SummedProxSGD(Budget(100, 15.1, 1e-5), 1.0, 4, 4, 2, FULL),
         ["eps <= min(8 ln(1/delta), 15)", "disjoint batches"]),
        (PROX_SVRG, []),
        (SummedProxSVRG(Budget(100, 15.1, 1e-5), 1.0, 40, 10, 1, 1, Subsample(0.01)),
         ["eps <= min(2 ln(2/delta), 15)", "eps' <= 15"]),
        (RESTARTS, []),
        (CORRECTED, []),
        (SummedSPIDER(Budget(100, 11.6, 1e-5), 1.0, 40, 10, 64, 4), ["eps <= ln(1/delta)"]),
        (ShuffledMessages(Budget(10, 1.0, 1e-2), 1.0, 40_000, Subsample(0.1), 400, 400), []),
        (ShuffledMessages(Budget(10, 5.4, 1e-2), 1.0, 4000, FULL, 40, 40),
         ["eps <= ln(2/delta)", "M >= 16 ln(18 R M^2/(N delta))", "R >= (n N eps)^2 / M", "K = 1"]),
    ],
)  # fmt: skip
def test_conditions_are_met_or_named(theorem: Theorem, conditions: list[str]) -> None:
    assert failing(theorem) == conditions


def test_prox_sgd_needs_as_many_records_as_the_condition_number() -> None:
    whole = SummedProxSGD(CLAIM, 1.0, 40, 40, 20, Fresh(0.05))
    assert failing(whole, kappa=100) == []
    assert failing(whole, kappa=101) == ["n >= kappa"]


def test_the_published_constants_cost_hundreds_of_times_the_noise() -> None:
    """4,885 clips against 8.45, 578 times, over one clip, and twice that over the range."""
    chosen = published(1000, 50, 1.0, 1e-6)
    assert (chosen.steps, chosen.probability) == (64, 0.25)
    central = 2 / float(gaussian.mu(1.0, 1e-6))
    assert chosen.deviation(1000) / 2 == pytest.approx(4885, rel=1e-3)
    assert chosen.deviation(1000) / central == pytest.approx(1156, rel=1e-2)
    assert published(4, 50, 1.0, 1e-6).steps == 50
