"""A clip that is found in the first rounds, deployed: the simulation's model, price and clips."""

import pytest
import torch
from support.channels import enrolled_federation
from support.deployed import assert_statements, offer_of, resolved_of, simulated

from fedsim.deployment.run import deploy
from fedsim.report.sections.training import ChosenClip

CLIP = {"quantile": 0.6, "rounds": 4, "share": 0.25, "start": 0.1}
ALGORITHM = {"name": "noisy_minibatch_sgd", "num_rounds": 6, "step_size": 0.5, "clip_norm": CLIP}
WITHOUT = {"baselines": False, "nonprivate_baseline": False}


@pytest.mark.parametrize(
    "batch", ["full", {"sampler": "subsample", "fraction": 0.5}], ids=["full", "sampled"]
)
def test_a_deployed_run_is_the_simulated_one(tmp_path, batch):
    batch = {"sampler": "full"} if batch == "full" else batch
    resolved = resolved_of(algorithm=ALGORITHM | {"batch": batch}, report=WITHOUT)
    rule = offer_of(resolved, "silo-00")["algorithm"]["clip_norm"]
    assert rule["noise_ratio"] == resolved.algorithm.rule.noise_ratio  # silos price the server's number
    enrolled, expected = enrolled_federation(tmp_path, resolved), simulated(resolved)
    with enrolled.opened(seeded=True) as channel:
        outcome = deploy(resolved.scenario, enrolled.federation, channel, tmp_path / "run")
    found = outcome.results.trials[0]
    assert torch.equal(found.models["private"], expected.models["private"])
    assert_statements(found, expected)
    clips = [row.clip for row in outcome.results.rows(ChosenClip)]
    assert clips == [row.clip for row in expected.rows if isinstance(row, ChosenClip)]
    assert len(clips) == 6
    assert len(set(clips)) > 2
    assert clips[4] == clips[5]
