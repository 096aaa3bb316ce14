"""A reader is told whose code ran."""

from __future__ import annotations

from typing import Any

from fedsim.results.privacy_statement import OWN, how, plug_ins, trusted
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve

TREE: dict[str, Any] = {
    "name": "small",
    "data": {"name": "synthetic", "rows": 60, "features": 5},
    "partition": {"name": "iid", "num_partitions": 2},
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 0.5, "clip_norm": 1.0},
    "privacy": {"epsilon": 1, "delta": 1e-5},
}


def test_with_nothing_of_others_only_the_installation_is_trusted() -> None:
    assert trusted(resolve(parse(TREE))) == [OWN]


def test_a_module_of_others_is_named() -> None:
    model = {"name": "module", "path": "support.network_modules:Wide"}
    algorithm = TREE["algorithm"] | {"name": "prox_sgd"}
    problem = {"name": "neural_network", "model": model}
    resolved = resolve(parse(TREE | {"problem": problem, "algorithm": algorithm}))
    assert plug_ins(resolved) == ["module support.network_modules:Wide"]
    assert "support.network_modules:Wide" in trusted(resolved)[1]


def test_float32_sums_of_sampled_batches_come_with_a_line() -> None:
    def notices(dtype: str, sampler: str) -> list[str]:
        batch = {"sampler": sampler} | ({} if sampler == "full" else {"fraction": 0.5})
        algorithm, runtime = TREE["algorithm"] | {"batch": batch}, {"name": "inprocess", "dtype": dtype}
        found: list[str] = how(resolve(parse(TREE | {"algorithm": algorithm, "runtime": runtime})))["notices"]
        return found

    assert any("float32 with sampled batches" in line for line in notices("float32", "poisson"))
    assert not any("float32" in line for line in notices("float64", "poisson") + notices("float32", "full"))
