"""What the silos of `fedsim up` would refuse is refused before anything is made, by the field that does."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.daemons import short_folder
from support.distribution import ROOT
from support.flower import environment
from support.scenarios import invoke, refusal

from fedsim.cli.policy import policies_of, resolved_within
from fedsim.common.errors import CAN_RESUME, Refused
from fedsim.deployment.flower.control import Status
from fedsim.deployment.topology import prepare
from fedsim.report.run_directory import read
from fedsim.scenario.load import load
from silos.front.config import load_config

LARGE = ("partition.num_partitions=2", "trials=1", "algorithm.num_rounds=2")


def _up(scenario: str, *words: str) -> str:
    said = refusal("up", scenario, "--out", "all", *words)
    assert not Path("all").exists()
    return said


def test_a_model_above_the_limit_is_refused_before_it_is_tried_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsim.scenario.resolve.resolve", lambda *given: pytest.fail("was tried out"))
    said = _up("mlp_digits", "--set=problem.model.hidden=[2000, 2000]")
    assert "policy.max_dimension: 1000000: the model has 4152010 parameters" in said
    assert "--policy max_dimension=VALUE" in said


TWO_SILOS = ("partition.num_partitions=2", "partition.proportions=null", "privacy.epsilon=1")
BREAST = [f"--set={each}" for each in TWO_SILOS]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("max_rounds=5", "policy.max_rounds: 5"),
        ("max_planned_numbers=10", "policy.max_planned_numbers: 10"),
        ("label_dp=true", "policy.label_dp: True"),
        ("min_noise_multiplier=9999", "the silo's policy asks for 9999"),
        ("algorithms=[local_sgd]", "does not allow algorithm"),
        ("max_dimensoin=5", "policy.max_dimensoin: 5: unknown key; did you mean 'max_dimension'?"),
        ("max_dimension=many", "policy.max_dimension: 'many'"),
        ("max_dimension", "--policy: 'max_dimension': must look like"),
    ],
)
def test_what_the_silos_policy_refuses_is_one_line(change, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert expected in _up("breast_cancer", *BREAST, "--policy", change)


def test_what_another_reason_refuses_is_tried_too(monkeypatch):
    """Such as a round that would take too long, which no field of the policy changes."""
    monkeypatch.setattr("silos.front.workload.SECONDS", 0.0)
    with pytest.raises(Refused, match="a round may take"):
        policies_of(resolved_within(load(Path("breast_cancer")), []), [])


@pytest.mark.parametrize("scenario", ["breast_cancer", "visits", "sdp_hospitals", "multi_stage"])
def test_each_silo_has_the_policy_that_was_tried(scenario, tmp_path):
    changes = ["max_dimension=5000000", "lifetime.sampled={epsilon: 0.5, delta: 1.0e-9}"]
    resolved = resolved_within(load(Path(scenario)), changes)
    made = prepare(resolved, tmp_path / "all", policies_of(resolved, changes))
    for name in made.silos:
        kept = load_config(made.config(name)).policy
        assert (kept.max_dimension, kept.lifetime.sampled.epsilon) == (5_000_000, 0.5)
        assert len(resolved.trace.plan.rounds) <= kept.max_rounds < 1000
    assert policies_of(resolved, [])[made.silos[0]].get("max_dimension") is None


@pytest.mark.parametrize("heals", [True, False])
def test_a_run_that_the_silos_refuse_offers_no_resume(heals, tmp_path, monkeypatch):
    why = f"3 of 5 silos answered, 5 are needed; {CAN_RESUME}" if heals else "the silo's lifetime has expired"
    status = Status("failed", f"ServerApp failed with exception: {why}")
    monkeypatch.setattr("fedsim.deployment.up.run_all", lambda *given: status)
    said = invoke("up", "breast_cancer", "--out", tmp_path / "all", code=1)
    assert f"failed: {status.details}" in said
    assert ("--resume" in said) is heals


@pytest.mark.slow
def test_a_model_above_the_default_limit_is_trained():
    with short_folder() as folder:
        command = [sys.executable, "-m", "fedsim", "up", "mlp_digits", "--out", str(folder / "all")]
        command += [f"--set={each}" for each in (*LARGE, "problem.model.hidden=[970, 970]")]
        command += ["--policy", "max_dimension=1100000"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        summary = read(folder / "all" / "run").summary
        assert summary.deployment.round_seconds
        tree = yaml.safe_load((folder / "all" / "silo-00" / "silo.yaml").read_text())
        assert tree["policy"]["max_dimension"] == 1_100_000
