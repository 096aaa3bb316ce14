"""The audit of the thesis: its table, the theorems of the shuffle model, and the least private oracle."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from typer.testing import CliRunner

from benchmarks.thesis.audit import claims, shuffle_claims
from benchmarks.thesis.audit.__main__ import entries
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
from benchmarks.thesis.audit.sum_oracle import Call, OracleTheorem, worst_epsilon
from benchmarks.thesis.audit.true_cost import Stated, true_epsilon
from fedsim.cli.main import app
from fedsim.privacy import gaussian
from fedsim.privacy.calibrate import Budget
from fedsim.protocol.batch import FULL, Fresh, Subsample

DOCUMENT = Path(__file__).parents[2] / "docs" / "thesis-audit.md"


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["theorems", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_committed_document_is_what_the_command_writes():
    assert DOCUMENT.read_text(encoding="utf-8") == invoke("--markdown")


ALL = claims.SETTINGS + shuffle_claims.SETTINGS
CHEAP = [setting for setting in ALL if "K = n," in setting.numbers or "R = 20, delta" in setting.numbers]


@pytest.mark.parametrize(
    "settings", [pytest.param(CHEAP, id="cheap"), pytest.param(ALL, id="all", marks=pytest.mark.slow)]
)
def test_the_packaged_prices_are_what_the_accountant_finds(settings):
    assert len(settings) >= 5
    packaged = {(one["theorem"], one["setting"]): one for one in json.loads(invoke("--json"))}
    for one in entries(settings):
        known = packaged[one["theorem"], one["setting"]]
        rows, expected = one.pop("rows"), dict(known).pop("rows")
        assert one == {key: value for key, value in known.items() if key != "rows"}
        for row, stated in zip(rows, expected, strict=True):
            numbers, known_numbers = ({**each["true"], "zcdp": each["zcdp"] or 0.0} for each in (row, stated))
            assert numbers == pytest.approx(known_numbers, rel=1e-6)  # a lower bound is searched for
            assert (row["target"], row["fails"]) == (stated["target"], stated["fails"])
            assert list(row["outside"]) == stated["outside"]


FIRST_FAILURE = {
    "noisy MB-SGD": None,
    "accelerated MB-SGD, empirical": None,
    "accelerated MB-SGD, one pass": None,
    "prox-SGD": 8.0,
    "prox-PL-SVRG": None,
    "prox-SPIDER (Theorems": 10.0,
    "alternate SPIDER": 6.0,
    "prox-SPIDER, the experiments' (": 6.0,
    "prox-SPIDER, the experiments' code": 0.75,
    "local SGD": 0.75,
    "the experiments' formula (": 6.0,
    "the experiments' formula at the printed K": 1.5,
    "shuffled MB-SGD": None,
    "SDP vector sum P_vec": None,
    "SDP accelerated, one pass": None,
    "SDP prox-SGD": 0.75,
    "SDP prox-SVRG": 0.75,
    "SDP prox-PL-SVRG, restarts": 0.75,
    "SDP prox-SPIDER": 0.75,
}


@pytest.mark.parametrize("name", FIRST_FAILURE)
def test_claims_fail_from_where_they_are_known_to(name):
    (entry,) = [entry for entry in json.loads(invoke("--json")) if entry["theorem"].startswith(name)]
    failing = [row["target"] for row in entry["rows"] if row["fails"]]
    assert (min(failing) if failing else None) == FIRST_FAILURE[name]
    assert entry["verdict"].endswith(".")
    assert ("fails" in entry["verdict"]) == bool(failing)


def test_the_table_on_a_screen_names_every_theorem_and_what_fails():
    output = invoke()
    assert "…" not in output
    assert "one pass (Theorems 36, 124)" in output  # titles are not wrapped to a narrow table
    for name in FIRST_FAILURE:
        assert name in output
    assert "fails" in output
    assert "* outside a condition" in output
    assert "eps <= 2 ln(2/delta): met" in output
    assert "not met from 12 on" in output


def entry(name: str) -> dict[str, Any]:
    (found,) = [entry for entry in json.loads(invoke("--json")) if entry["theorem"].startswith(name)]
    return found


def test_every_condition_is_shown_with_where_it_is_not_met():
    # prox-SGD is stated up to 15; K = 50 of 1,000 is no longer enough from eps of 10.8 on.
    shown = {each["condition"]: (each["met"], each["unmet"]) for each in entry("prox-SGD")["conditions"]}
    assert shown["eps <= min(8 ln(1/delta), 15)"] == (False, [18.0])
    assert shown["delta < 1/2"] == (True, [])
    (batch,) = [each for each in entry("noisy MB-SGD")["conditions"] if each["condition"].startswith("K >=")]
    assert (
        1000 * 10 / (4 * math.sqrt(200 * math.log(2e6)))
        < 50
        < 1000 * 12 / (4 * math.sqrt(200 * math.log(2e6)))
    )
    assert batch["unmet"] == [12.0, 15.0, 18.0]


def test_the_audit_names_the_slip_in_spiders_period():
    slip = entry("prox-SPIDER (")["slip"]
    assert slip in DOCUMENT.read_text(encoding="utf-8")
    for text in ("q <= 1/(eta^2 tau_2^2)", "(a L/sqrt(Delta beta))^(2/3)", "q eta^2 tau_2^2 = 4"):
        assert text in slip
    slips = [each["theorem"] for each in json.loads(invoke("--json")) if each["slip"]]
    assert slips[0] == "prox-SPIDER (Theorems 44, 149)"
    assert slips[1].endswith("(Theorems 59, 61, 63)")
    assert all(title.startswith("SDP") for title in slips[2:])


def column(name: str, which: str) -> dict[float, float]:
    return {row["target"]: row["true"][which] for row in entry(name)["rows"]}


def test_spider_keeps_its_claim_with_min_for_the_printed_max():
    printed, corrected = (
        column("SDP prox-SPIDER", which) for which in ("any oracle", "with min, any oracle")
    )
    assert all(printed[target] > target for target in printed)
    assert all(corrected[target] <= target / 2 for target in corrected)  # twice over, M being N


def test_a_draw_of_silos_amplifies_only_where_it_is_secret():
    # M = N eps / 2, so that the oracle is asked for N eps / (2 M) = 1: ln(1 + (eps/2)(e - 1)), or 1.
    secret, known = (column("SDP prox-SGD", which) for which in ("S_r secret, at least", "S_r known"))
    for target in (0.75, 1.0, 1.5):
        assert secret[target] == pytest.approx(math.log(1 + target / 2 * (math.e - 1)), rel=1e-4)
        assert known[target] == pytest.approx(1.0, rel=1e-4)
    assert all(value <= target for target, value in secret.items())


def test_full_gradients_break_svrgs_claim_and_gaussian_sums_do_not():
    worst = column("SDP prox-SVRG", "any oracle, at least")
    assert all(value > 1.2 * target for target, value in worst.items())
    assert all(value < target / 3 for target, value in column("SDP prox-SVRG", "Gaussian sums").items())


def test_shuffled_messages_lie_between_their_sum_and_one_silos():
    below, above = (
        column("shuffled MB-SGD", which) for which in ("their sum, at least", "one silo's, at most")
    )
    # One Gaussian of sqrt M times the noise, 50-fold rare, over R rounds: near enough sqrt R / (50 z).
    assert all(below[target] < target / 16 < 2 * target < above[target] for target in below)


def test_the_published_vector_sum_has_a_thousand_times_the_noise_it_needs():
    found = column("SDP vector sum P_vec", "Gaussian of that variance")
    # 2 sqrt(3/16 24e4) ln(4 (d^2 + 1) / delta) / eps of the clip's noise, for a sensitivity of 2.
    z = math.sqrt(3 / 16 * 24e4) * math.log(4 * 2501e6)
    assert found[1.0] == pytest.approx(float(gaussian.epsilon(1 / z, 1e-6)), rel=1e-3)
    assert all(value < target / 1000 for target, value in found.items())


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


def test_shuffled_messages_have_the_noise_of_theorem_38():
    theorem = ShuffledMessages(CLAIM, 3.0, 50, Subsample(0.01), silos=40, active=10)
    logs = math.log(50 * 100 / 40e-5) * math.log(50e5) * LOG
    assert theorem.sigma**2 == pytest.approx(9 * 50 * 10 * logs / (100**2 * 40**2 * 4))
    summed = SummedMessages(CLAIM, 3.0, 50, Subsample(0.01), silos=40, active=10)
    assert summed.sigma**2 == pytest.approx(10 * theorem.sigma**2)


def test_calls_are_those_of_the_theorems():
    assert stated(ONE_PASS) == [near(2.0, 1e-5, 20, 3.0)]
    assert stated(PROX_SGD) == [near(2 * 40 / 20, 1e-5, 20, 3.0)]
    assert PROX_SGD.calls()[0].rate(100) == 0.25
    # eps n N / (8 M K sqrt(4 E Q ln(2/delta))): 2 * 4000 / (8 * 250 sqrt(80 ln 2e5)).
    one = 4 / math.sqrt(80 * math.log(2e5))
    assert stated(PROX_SVRG) == [near(one, 1e-5 / 40, 5, 3.0), near(one, 1e-5 / 40, 20, 6.0)]
    assert [call.rate(100) for call in PROX_SVRG.calls()] == [1.0, 0.25]
    assert stated(RESTARTS) == [near(2 / 8, 1e-5 / 16, 8, 3.0)]


def test_spiders_gradients_get_the_whole_budget_each_as_printed_and_their_share_as_meant():
    whole = 2 * 40 / (40 * math.sqrt(2 * LOG))
    differences = near(whole / 8, 1e-5 / 128, 48, 6.0)
    assert stated(PRINTED) == [near(whole, 4 * 1e-5 / 128, 16, 3.0), differences]
    assert stated(CORRECTED) == [near(whole / 4, 4 * 1e-5 / 128, 16, 3.0), differences]
    # One phase: either way the one gradient has all of it.
    alone = [SummedSPIDER(CLAIM, 3.0, 40, 10, 64, 64, printed).calls()[0] for printed in (True, False)]
    assert alone[0].epsilon == alone[1].epsilon == pytest.approx(whole)


def test_gaussian_sums_keep_each_calls_promise_and_not_more():
    for theorem in (ONE_PASS, PROX_SVRG, CORRECTED):
        for call, noisy in zip(theorem.calls(), theorem.releases, strict=True):
            assert noisy.batch == call.batch
            assert gaussian.epsilon(1 / noisy.multiplier, call.delta) == pytest.approx(call.epsilon, rel=1e-6)
            assert noisy.sensitivity == pytest.approx(2 * call.clip / call.batch.size(100))
    assert true_epsilon(ONE_PASS) == pytest.approx(2.0)


def failing(theorem: Stated) -> list[str]:
    return [check.condition for check in theorem.checks if not check.holds]


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
def test_conditions_are_met_or_named(theorem, conditions):
    assert failing(theorem) == conditions


def test_prox_sgd_needs_as_many_records_as_the_condition_number():
    whole = SummedProxSGD(CLAIM, 1.0, 40, 40, 20, Fresh(0.05))
    assert failing(replace(whole, kappa=100)) == []
    assert failing(replace(whole, kappa=101)) == ["n >= kappa"]


def test_the_published_constants_cost_hundreds_of_times_the_noise():
    """4,885 clips against 8.45, 578 times, over one clip, and twice that over the range."""
    chosen = published(1000, 50, 1.0, 1e-6)
    assert (chosen.steps, chosen.probability) == (64, 0.25)
    central = 2 / float(gaussian.mu(1.0, 1e-6))
    assert chosen.deviation(1000) / 2 == pytest.approx(4885, rel=1e-3)
    assert chosen.deviation(1000) / central == pytest.approx(1156, rel=1e-2)
    assert published(4, 50, 1.0, 1e-6).steps == 50


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"), [(0.1, 0.0, 30), (0.5, 1e-7, 10), (1.0, 1e-8, 5), (0.02, 1e-9, 900)]
)
def test_full_sums_compose_as_the_library_has_it(epsilon, delta, count):
    one = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta), value_discretization_interval=epsilon / 100
    )
    expected = one.self_compose(count).get_epsilon_for_delta(1e-6)
    assert worst_epsilon([Call(epsilon, delta, count, FULL, 1.0)], 10, 1e-6) == pytest.approx(expected, 1e-6)


def test_two_kinds_of_sums_compose():
    def one(epsilon):
        parameters = common.DifferentialPrivacyParameters(epsilon, 1e-8)
        return privacy_loss_distribution.from_privacy_parameters(
            parameters, value_discretization_interval=0.001
        )

    both = one(0.3).self_compose(7).compose(one(0.05).self_compose(40))
    calls = [Call(0.3, 1e-8, 7, FULL, 1.0), Call(0.05, 1e-8, 40, FULL, 2.0)]
    assert worst_epsilon(calls, 10, 1e-6) == pytest.approx(both.get_epsilon_for_delta(1e-6), rel=1e-6)


def test_disjoint_batches_cost_one_sum():
    assert worst_epsilon([Call(2.0, 1e-6, 20, Fresh(0.05), 1.0)], 100, 1e-6) == pytest.approx(2.0)


def test_a_rare_record_is_told_apart_as_by_amplification():
    # One pure response, and nothing is given away in delta: ln(1 + q (e^eps - 1)) exactly.
    for rate in (Call(1.0, 0.0, 1, Subsample(0.1), 1.0), Call(1.0, 0.0, 1, FULL, 1.0, present=0.1)):
        found = worst_epsilon([rate], 100, 1e-12)
        assert found == pytest.approx(math.log(1 + 0.1 * (math.e - 1)), abs=1e-6)


def test_sampled_responses_compose_as_their_sequences_do():
    rate, epsilon, delta, count, target = 0.3, 0.8, 1e-3, 4, 0.02
    yes, no = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    absent = {"yes": (1 - delta) * no, "no": (1 - delta) * yes, "absent": delta, "there": 0.0}
    surely = {"yes": (1 - delta) * yes, "no": (1 - delta) * no, "absent": 0.0, "there": delta}
    there = {each: (1 - rate) * absent[each] + rate * surely[each] for each in absent}

    def profile(at):
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


def test_what_fails_more_often_than_delta_has_no_epsilon():
    assert worst_epsilon([Call(0.1, 1e-6, 3, FULL, 1.0)], 10, 1e-6) == math.inf
