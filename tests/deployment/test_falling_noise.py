"""Noise that falls over the rounds, between organisations: as simulated, and within what a silo allows."""

import pytest
import torch
from support.channels import enrolled_federation
from support.deployed import SCENARIO, calling, enrolled, offer_of, resolved_of, simulated, write_silos

from fedsim.deployment.run import deploy

FALLING = SCENARIO["algorithm"] | {"last_iterate": True, "noise_decay": 0.7}


def test_a_deployed_run_is_the_simulated_one(tmp_path):
    resolved = resolved_of(algorithm=FALLING)
    found = enrolled_federation(tmp_path, resolved)
    with found.opened(seeded=True) as channel:
        outcome = deploy(resolved.scenario, found.federation, channel, tmp_path / "run")
    expected = simulated(resolved).models["private"]
    torch.testing.assert_close(outcome.results.trials[0].models["private"], expected)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"noise_decay": 1.5}, "noise_decay"),
        ({"noise_decay": 0.1, "num_rounds": 100}, "at least 0.756"),
        ({"batch": {"sampler": "fresh", "fraction": 0.1}}, "fresh"),
        ({"noise_decay": 0.05}, "noise multiplier"),  # the policy's least
    ],
)
def test_a_silo_refuses_it_over_the_wire(changes, hint, tmp_path):
    resolved = resolved_of(algorithm=FALLING)
    policy = {"min_noise_multiplier": 2.4}
    (config, *_) = enrolled(write_silos(tmp_path, resolved, policy=policy))
    offer = offer_of(resolved, "silo-00")
    with calling(config) as caller:
        assert hint in caller.refused("offer", **{**offer, "algorithm": {**offer["algorithm"], **changes}})
