"""Parts that are asked for many times are attacked: the largest part's cost is claimed, and is needed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.audit_settings import assert_sound

import fedsim
from fedsim.api.given import one_run, resolved_of
from fedsim.privacy import gaussian
from fedsim.testing.attacks import estimate, servers
from fedsim.testing.attacks.audit import ALARM
from fedsim.testing.attacks.search import search
from fedsim.testing.attacks.setting import prepare

SILO, ROUNDS = 1, 8


@pytest.fixture(scope="module")
def attacked():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (160, 3))
    y = (x[:, 0] + 0.3 * rng.standard_normal(160) > 0).astype(int)
    data = fedsim.Arrays(x, y, np.arange(160) % 2, ranges=(-1.0, 1.0))
    scenario = {
        "name": "parts",
        "seed": 1,
        "problem": "logistic_regression",
        "algorithm": {
            "name": "localized_accelerated_sgd",
            "phases": 2,
            "phase_rounds": ROUNDS,
            "step_size": 0.5,
            "regularisation": 0.5,
            "growth": 1.0,
            "clip_norm": 1.0,
        },
        "privacy": {"epsilon": 8.0, "delta": 1e-3},
    }
    setting = prepare(resolved_of(one_run(scenario, {}), None, data))
    return setting, search(setting, SILO)


def test_a_right_gate_is_not_flagged(attacked):
    assert_sound(*attacked, least=0.9)


@pytest.mark.slow
def test_the_attack_does_not_pass_the_claim_and_shows_a_price_of_one_round_false(attacked):
    """A silo that paid for a part once, as for a fresh batch, would claim 1 / sqrt(8) of mu."""
    setting, chosen = attacked
    samples = servers.malicious(setting, SILO, chosen, 3_000)
    claim = estimate.claim_of(setting, SILO)
    assert estimate.violated([samples], claim, ALARM) is None
    once = float(gaussian.mu(claim.epsilon, claim.delta)) / math.sqrt(ROUNDS)
    false = replace(claim, epsilon=float(gaussian.epsilon(once, claim.delta)))
    assert estimate.violated([samples], false, ALARM) is not None
