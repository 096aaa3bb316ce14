"""Sums over deployed silos: the simulation's model, both guarantees, and who was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.pooled import PooledFederation, pooled_federation, pooled_scenario

from fedsim.deployment.run import deploy
from fedsim.results.outcome import Outcome, Results
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import execute

GENEROUS: dict[str, Any] = {
    "lifetime": {"epsilon": 20.0, "delta": 0.1, "expires": "2999-12-31"},
    "per_run": {"epsilon": 10.0, "delta": 0.01},
}


def run(made: PooledFederation, out: Path, seeded: bool = True, **changes: Any) -> Outcome:
    with made.silos(seeded) as silos, made.channel() as shuffler:
        return deploy(pooled_scenario(**changes), made.federation, silos, out, shuffler=shuffler)


SVRG = {
    "name": "prox_svrg",
    "epochs": 2,
    "inner_steps": 2,
    "step_size": 0.5,
    "clip_norm": 1.0,
    "difference_clip": 1.0,
}
PARITY: dict[str, dict[str, Any]] = {
    "as it is": {},
    "held silos, unequal budgets": {
        "algorithm": SVRG,
        "participation": {"name": "uniform", "num_silos": 2},
        "privacy": {"epsilon": [2.0, 1.0, 2.0]},
    },
    "float32": {"runtime": {"name": "inprocess", "dtype": "float32"}},
}


@pytest.mark.parametrize("case", PARITY)
def test_the_model_is_that_of_the_simulation(tmp_path: Path, case: str) -> None:
    resolved = resolve(pooled_scenario(**PARITY[case]))
    simulated = Results()
    execute(resolved, simulated, lambda measurement: None)
    expected = simulated.trials[0]
    terms = {"min_silos": 2} if "participation" in PARITY[case] else {}
    made = pooled_federation(tmp_path, pooled_scenario(**PARITY[case]), policy=GENEROUS, terms=terms)
    found = run(made, tmp_path / "run", **PARITY[case]).results.trials[0]
    tolerance = 1e-9 if case != "float32" else 1e-5
    torch.testing.assert_close(
        found.models["private"], expected.models["private"], rtol=tolerance, atol=tolerance * 1e-3
    )
    for mine, theirs in zip(found.statements, expected.statements, strict=True):
        assert mine.admitted.noise_multiplier == theirs.admitted.noise_multiplier
        assert mine.admitted.epsilon_guaranteed == theirs.admitted.epsilon_guaranteed
        assert (mine.epsilon_spent, mine.rounds) == (theirs.epsilon_spent, theirs.rounds)
