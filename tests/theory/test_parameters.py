"""Numbers that theorems choose: against the printed formulas, overridden, printed, and refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused
from support.scenarios import invoke, write
from support.theorem_scenarios import tree as made_of

from fedsim.protocol.batch import Fresh
from fedsim.scenario.by_theorem import CHOICES
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.theory.choice import Case
from fedsim.theory.symbols import Symbols
from fedsim.theory.theorem import Derived

S = Symbols(
    n=1000, N=25, M=25, d=50, epsilon=2.0, delta=1e-5, L=2.0, beta=1.5, D=3.0, Delta=4.0, phi=2.0, upsilon=2.0
)
LOG = math.log(1e5)


def choice(name: str, s: Symbols, one_pass: bool = False) -> Derived:
    return CHOICES[name](Case(s, s.clip or 0.0, Fresh(0.5) if one_pass else None))


def chosen(name: str, setting: Symbols, one_pass: bool = False) -> dict[str, Any]:
    return choice(name, setting, one_pass).values


def test_minibatch_sgd_convex_is_theorem_34() -> None:
    values = chosen("noisy_minibatch_sgd", S)
    R = math.ceil(1.5 * 3 * 5 / 2 * math.sqrt(1000) + 25_000)  # eps n / sqrt d = 283 > sqrt n; n M = 25,000
    assert values["num_rounds"] == R
    step = 3 / (2 * math.sqrt(R)) * min(1, 2000 * 5 / math.sqrt(50 * R), math.sqrt(25_000 / R))
    assert values["step_size"] == pytest.approx(min(1 / 1.5, step))
    assert values["batch"] == {"sampler": "subsample", "fraction": 1 / 1000}
    assert "strong_convexity" not in values  # equal weights


def test_minibatch_sgd_strongly_convex_contracts_and_weighs_late_iterates() -> None:
    found = choice("noisy_minibatch_sgd", replace(S, mu=0.1))
    signal = 25 * 2000**2
    R = max(2 * 15 * math.log(1.5 * 9 * 0.1 * signal / (50 * 4)), min(25_000, signal / 50))
    assert found.values["num_rounds"] == math.ceil(R)
    assert found.values["step_size"] <= 1 / 3
    assert found.values["strong_convexity"] == 0.1  # weights (1 - mu eta)^-(r + 1)
    assert found.notes["gamma_r ratio"] == pytest.approx(1 / (1 - 0.1 * found.values["step_size"]))


def test_the_one_pass_theorem_chooses_disjoint_batches() -> None:
    values = chosen("accelerated_minibatch_sgd", S, one_pass=True)
    K = math.ceil((2 / 4.5) ** 0.4 * 1000**0.6 * (50 * LOG) ** 0.2 / (2**0.4 * 25**0.2))
    R = 1000 // K
    assert values["num_rounds"] == R > 1
    assert values["batch"] == {"sampler": "fresh", "fraction": 1 / R}
    size = math.floor(1000 / R + 1e-9)
    noise = 32 * 4 * math.log(1.25e5) / (2 * size) ** 2
    V = math.sqrt(4 / (25 * size) + 50 * noise / 25)
    assert values["step_size"] == pytest.approx(1 / max(3, R**1.5 * V / 3))


def test_empirical_acceleration_takes_every_record_and_the_root_of_the_plain_rounds() -> None:
    found = choice("accelerated_minibatch_sgd", S)
    R = math.ceil(math.sqrt(1.5 * 3 / 2 * 5 * 2000 / math.sqrt(50 * LOG)))
    assert found.values["num_rounds"] == R
    assert found.values["batch"] == "full"
    assert found.notes["lambda"] > 0
    partial = choice("accelerated_minibatch_sgd", replace(S, M=10, d=1, epsilon=8.0))
    assert partial.values["num_rounds"] == math.ceil(8**2 * 1000 / LOG)


def test_multi_stage_is_theorem_37_with_the_constants_of_its_stages() -> None:
    setting = replace(S, mu=0.1, epsilon=8.0, n=10_000)
    values = chosen("multi_stage_accelerated_minibatch_sgd", setting)
    stages = math.ceil(math.log2(0.1 * 4 * (8 * 10_000) ** 2 * 25 / (4 * 50 * LOG)))
    R = stages * math.ceil(4 * math.sqrt(30))
    assert values["num_rounds"] == R
    sigma = 256 * 4 * R * math.log(2.5e5 * R) * math.log(2e5) / (10_000 * 8) ** 2
    assert values["noise"] == pytest.approx(math.sqrt(50 * sigma / 25))
    constants = [values[name] for name in ("smoothness", "strong_convexity", "initial_excess", "clip_norm")]
    assert constants == [1.5, 0.1, 4.0, 2.0]
    assert values["batch"] == "full"


def test_multi_stage_in_one_pass_has_the_variance_of_lemma_128() -> None:
    setting = replace(S, mu=0.1, epsilon=8.0, n=100_000)
    values = chosen("multi_stage_accelerated_minibatch_sgd", setting, one_pass=True)
    R = math.ceil(math.log2(0.4 * 100_000 * 25 / 4)) * math.ceil(4 * math.sqrt(30))
    K = 100_000 // R
    assert values["batch"] == {"sampler": "fresh", "fraction": 1 / R}
    noise = 32 * 4 * math.log(1.25e5) / (8 * K) ** 2
    assert values["noise"] == pytest.approx(math.sqrt(4 / (25 * K) + 50 * noise / 25))
    with refused("scenario.privacy.epsilon", 2.0):
        chosen("multi_stage_accelerated_minibatch_sgd", replace(S, mu=0.1))
    with refused("scenario.assumptions.beta", 1.5, "n = 100"):
        chosen("multi_stage_accelerated_minibatch_sgd", replace(S, mu=0.1, n=100), one_pass=True)


def test_prox_sgd_is_theorem_40() -> None:
    values = chosen("prox_sgd", replace(S, mu=0.1))
    R = math.ceil(2 * 15 * math.log(0.1 * 4 / 4 * min(25_000, 2000**2 * 25 / (50 * LOG))))
    assert values == {
        "num_rounds": R,
        "step_size": 1 / 3,
        "clip_norm": 2.0,
        "batch": {"sampler": "fresh", "fraction": 1 / R},
    }


def test_prox_pl_svrg_is_theorem_42() -> None:
    values = chosen("prox_pl_svrg", replace(S, mu=0.1))
    K = math.ceil((1000**2 / 25) ** (1 / 3))  # 35, above eps n / (4 sqrt(2 S R ln(2/delta)))
    Q = 1000 // K
    assert (values["inner_steps"], values["epochs"]) == (Q, math.ceil(12 * 15 / Q))
    assert values["restarts"] == math.ceil(math.log2(4 * 0.1 * 25 * 2000**2 / (15 * 50 * 4)))
    assert values["step_size"] == pytest.approx(min(1, K**1.5 * 5 / 1000) / 12)
    assert values["difference_clip"] == 4.0


def test_prox_spider_is_theorem_44() -> None:
    values = chosen("prox_spider", S)
    noise = math.sqrt(50 * LOG)
    q = math.floor((2000 * 2 * 5 / (8 * noise * math.sqrt(6))) ** (2 / 3))
    assert values["period"] == q
    R = math.ceil(2000 * math.sqrt(25 * q) / (2 * noise) * math.sqrt(6))
    assert values["num_rounds"] == R
    assert values["difference_noise_ratio"] == pytest.approx(math.sqrt(q))
    # The noise of a difference per unit of the step, sigma_2^2 = 16 beta^2 R ln(1/delta) / (eps n)^2.
    tau = 50 * 16 * 1.5**2 * R * LOG / 2000**2 / 25
    eta = values["step_size"]
    assert q <= 1 / (2 * eta**2 * tau) < (q + 1.1) * 1.05
    assert (values["step_size"], values["smoothness"]) == (1 / 3, 1.5)
    with refused("scenario.privacy.epsilon", 0.001):
        chosen("prox_spider", replace(S, epsilon=0.001))


SCENARIO = made_of(
    3,
    1000,
    problem={"name": "logistic_regression", "constraint": {"name": "l2_ball", "radius": 2}},
    algorithm={"name": "prox_sgd", "parameters": "theorem", "clip_norm": 1.0},
    privacy={"epsilon": 4, "delta": 1e-5},
    assumptions={"beta": 0.5, "mu": 0.1, "Delta": 1.0},
)


def scenario(**algorithm: Any) -> dict[str, Any]:
    return SCENARIO | {"algorithm": SCENARIO["algorithm"] | algorithm}


def test_given_numbers_stand_and_the_rest_is_the_theorems() -> None:
    free, fixed = resolve(parse(scenario())), resolve(parse(scenario(num_rounds=7)))
    assert fixed.algorithm.num_rounds == 7
    assert free.algorithm.num_rounds > 7
    assert fixed.algorithm.step_size == free.algorithm.step_size == 1.0
    assert fixed.derived is not None
    assert "num_rounds" not in fixed.derived.values


def test_a_theorem_for_claimed_epsilon_chooses_by_the_claim() -> None:
    tree = scenario()
    tree["privacy"] = {"epsilon": "unlimited", "delta": 1e-5, "calibration": "theorem", "claimed_epsilon": 4}
    resolved = resolve(parse(tree))
    R = math.ceil(2 * 5 * math.log(0.1 * min(3 * 1000, 4**2 * 1000**2 * 3 / (6 * LOG))))
    assert resolved.algorithm.num_rounds == R
    assert resolved.derived is not None
    assert resolved.derived.predicted == {}


def test_the_numbers_are_printed(tmp_path: Path) -> None:
    path = write(tmp_path, scenario())
    first = resolve(parse(scenario())).algorithm.num_rounds
    shown = invoke("privacy", path).splitlines()
    assert shown[0].startswith(f"prox-SGD (Theorem 40): num_rounds = {first}, step_size = 1,")
    stated = json.loads(invoke("privacy", path, "--json"))["parameters"]
    assert stated["values"]["num_rounds"] == first


def test_the_editors_schema_asks_for_numbers_unless_a_theorem_gives_them() -> None:
    kinds = json.loads(invoke("schema"))["$defs"]
    schema = kinds["prox_sgd"]
    assert schema["else"]["required"] == ["num_rounds", "step_size", "clip_norm"]
    assert schema["if"]["properties"] == {"parameters": {"const": "theorem"}}
    assert "local_steps" in kinds["local_sgd"]["else"]["required"]


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str, object]] = {
    "no beta": ({}, {"mu": 0.1, "Delta": 1.0}, "assumptions.beta", None),
    "negative mu": ({}, {"mu": -1}, "assumptions.mu", -1),
    "unknown constant": ({}, {"kappa": 1}, "assumptions.kappa", 1),
    "no theorem": ({"name": "local_sgd"}, {}, "algorithm.parameters", "theorem"),
    "numbers missing without a theorem": ({"parameters": "given"}, {}, "algorithm.num_rounds", None),
    "no such source": ({"parameters": "guess"}, {}, "algorithm.parameters", "guess"),
    "wrong given number": ({"num_rounds": 0}, {}, "algorithm.num_rounds", 0),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_field_and_value(case: str) -> None:
    algorithm, assumptions, field, value = BAD[case]
    with refused(f"scenario.{field}", value):
        resolve(parse(scenario(**algorithm) | {"assumptions": assumptions}))


def test_unlimited_epsilon_gives_a_theorem_nothing_to_choose_by() -> None:
    tree = scenario()
    tree["privacy"] = {"epsilon": "unlimited", "calibration": "sigma", "noise_multiplier": 1}
    with refused("scenario.privacy.epsilon", "unlimited"):
        resolve(parse(tree))
