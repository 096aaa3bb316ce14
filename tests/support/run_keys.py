"""The keys of all noise and batches that a simulation draws, and runs that differ in one thing."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.scenarios import BASE
from support.scenarios import changed as changed

from fedsim.report.outcome import Results
from fedsim.report.record import CellResult
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import host, side_by_side
from fedsim.simulation import trial as in_process
from fedsim.simulation.sweeps import run_cells
from fedsim.simulation.sweeps.cell import Cell
from fedsim.simulation.sweeps.run_cells import run_batch
from silos.vault.entropy import SeededEntropy

SGD = BASE["algorithm"]
TREE: dict[str, Any] = BASE | {"trials": 1, "privacy": {"epsilon": 1.0, "delta": 1e-4}}
OTHER: dict[str, dict[str, Any]] = {
    "clip": {"algorithm.clip_norm": 2.0},
    "step size": {"algorithm.step_size": 0.25},
    "rounds": {"algorithm.num_rounds": 5},
    "sampler": {"algorithm.batch": {"sampler": "subsample", "fraction": 0.5}},
    "algorithm": {"algorithm": SGD | {"name": "prox_sgd"}},
    "epsilon": {"privacy.epsilon": 2.0},
    "delta": {"privacy.delta": 1e-5},
    "another silo's epsilon": {"privacy.epsilon": [1.0, 1.0, 2.0]},
    "given noise": {"privacy.calibration": "sigma", "privacy.noise_multiplier": 30.0},
    "no mechanism": {"privacy": {"mechanism": "none"}},
    "dtype": {"runtime": {"name": "inprocess", "dtype": "float32"}},
    "regulariser": {"problem": {"name": "logistic_regression", "regulariser": {"l2": 0.1}}},
    "constraint": {
        "problem": {"name": "logistic_regression", "constraint": {"name": "l2_ball", "radius": 1}}
    },
    "problem": {"problem": "hinge_loss"},
    "smoothing": {"problem": {"name": "hinge_loss", "smoothing": {"beta": 1.0}}},
    "weights": {"problem": {"name": "logistic_regression", "silo_weights": [1, 1, 2]}},
    "records": {"data.seed": 1},
    "scaling": {"data.scaling": "training_statistics", "data.preprocessing_cost": "ignored"},
    "norm of records": {"data.record_norm": 1.0},
    "partition": {"partition.proportions": [1, 1, 2]},
    "participation": {"participation": {"name": "uniform", "num_silos": 2}},
}
"""What may differ between two runs with one seed."""


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keys of all entropy that a simulation makes from now on, in order."""
    found: list[int] = []

    class Recorded(SeededEntropy):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.extend(self._keys)

    for module in (host, side_by_side, run_cells):
        monkeypatch.setattr(module, "SeededEntropy", Recorded)
    return found


def simulated(tree: Mapping[str, Any]) -> Results:
    results = Results()
    in_process.execute(resolve(parse(tree)), results, lambda _: None)
    return results


def of_run(tree: Mapping[str, Any], keys: list[int]) -> set[int]:
    keys.clear()
    simulated(tree)
    return set(keys)


def of_batch(cells: list[Cell], keys: list[int]) -> set[int]:
    keys.clear()
    assert [found for found in run_batch(cells) if not isinstance(found, CellResult)] == []
    return set(keys)


def baselines(tree: Mapping[str, Any]) -> dict[str, Any]:
    return changed(tree, {"report": {"nonprivate_baseline": False}})
