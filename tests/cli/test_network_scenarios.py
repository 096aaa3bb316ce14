"""Networks in a scenario: the shipped one prices and trains, and bad input names its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import InputError
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import in_one_process

SHIPPED = Path(__file__).parents[2] / "scenarios" / "mlp_digits.yaml"


def scenario(problem: dict[str, Any], data: dict[str, Any] | None = None) -> Any:
    return parse(
        {
            "name": "network",
            "data": data or {"name": "digits", "task": "digit", "intercept": False},
            "partition": {"name": "iid", "num_partitions": 4},
            "problem": problem,
            "algorithm": {"name": "prox_sgd", "num_rounds": 3, "step_size": 0.1, "clip_norm": 1.0},
            "privacy": {"epsilon": 1.0},
            "runtime": "inprocess",
        }
    )


@pytest.mark.parametrize(
    ("problem", "field", "reason"),
    [
        ({"name": "neural_network"}, "problem.model", "required with neural_network"),
        ({"name": "softmax_regression", "model": {"name": "mlp"}}, "problem.model", "needs problem.name"),
        (
            {"name": "neural_network", "model": "perceptron"},
            "problem.model.name",
            "must be one of mlp, paired_mlp, lenet",
        ),
        ({"name": "neural_network", "model": {"name": "mlp", "hidden": [0]}}, "model.hidden.0", "greater"),
        ({"name": "neural_network", "model": {"name": "mlp", "widths": [4]}}, "model.widths", "unknown key"),
        (
            {"name": "neural_network", "model": {"name": "lenet", "image": [1, 28, 28]}},
            "problem.model.image",
            "64",
        ),
        (
            {
                "name": "neural_network",
                "model": {"name": "module", "path": "support.network_modules:batch_norm"},
            },
            "problem.model",
            "BatchNorm1d",
        ),
        (
            {"name": "neural_network", "model": {"name": "module", "path": "nowhere:Net"}},
            "problem.model.path",
            "cannot be imported",
        ),
    ],
)
def test_bad_input_names_its_field(problem: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        resolve(scenario(problem))
    assert caught.value.field.startswith("scenario.")
    assert field in caught.value.field


def test_the_dry_run_and_the_run_begin_at_the_same_public_point() -> None:
    resolved = resolve(scenario({"name": "neural_network", "model": "mlp"}))
    assert len(resolved.trace.plan.rounds) == 3
    assert resolved.problem.dimension == 64 * 64 + 64 + 64 * 10 + 10


def test_a_regression_network_runs() -> None:
    data = {"name": "synthetic", "link": "linear", "rows": 80, "features": 3}
    resolved = resolve(scenario({"name": "neural_network", "model": {"name": "mlp", "hidden": [4]}}, data))
    trial = in_one_process(resolved, 0)
    errors = [m.error for m in trial.advance(60)]
    assert trial.finished
    assert len(errors) == 8


def test_the_shipped_scenario_learns_the_digits() -> None:
    resolved = resolve(load(SHIPPED, ["trials=1", "report.evaluate_every=80"]))
    trial = in_one_process(resolved, 0)
    last = {m.variant: m.error for m in trial.advance(120)}
    assert trial.finished
    assert last["private"] < 0.15
    assert last["nonprivate"] < 0.05
