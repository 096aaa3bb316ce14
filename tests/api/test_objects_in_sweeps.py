"""Sweeps and tuning over algorithms and records that are objects, as in a notebook."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from support.refusals import refused
from torch import Tensor

import fedsim
from fedsim import FULL, Batch, Query, Round
from fedsim.common.objects import all_standing


@dataclass(frozen=True)
class Mine:
    """Has a value that no plain value stands for."""

    linear: ClassVar[bool] = True
    num_rounds: int
    pace: float = 1.0
    batch: Batch = FULL
    shaped: Any = None

    def server(self, w: Tensor, problem: Any, public: Any, rng: Any) -> Iterator[Round]:
        for _ in range(self.num_rounds):
            g = (yield Round({"w": w}, answer=w))["g"]
            w = problem.project(w - self.pace * (g if self.shaped is None else self.shaped(g)))
        return w

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Mapping[str, Tensor]:
        return {"g": ask(Query("gradient", (broadcast["w"],), 1.0, self.batch))}


def stand_still(g: Tensor) -> Tensor:
    return 0 * g


def records() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (150, 2))
    return {"x": x, "y": (x @ [2, -1] > 0).astype(int), "silo": rng.choice(["north", "south"], 150)}


def arrays() -> fedsim.Arrays:
    made = records()
    return fedsim.Arrays(made["x"], made["y"], made["silo"], ranges=(-1.0, 1.0))


def frame() -> fedsim.Frame:
    made = records()
    table = pd.DataFrame({"a": made["x"][:, 0], "b": made["x"][:, 1], "y": made["y"], "where": made["silo"]})
    schema = {name: {"kind": "number", "lower": -1, "upper": 1} for name in "ab"}
    schema["y"] = {"kind": "category", "categories": [0, 1]}
    return fedsim.Frame(table, target="y", silo="where", schema=schema)


def swept(grid: Any, tune: Any = None, **more: Any) -> fedsim.Sweep:
    section = {"grid": grid} | ({"tune": tune} if tune else {})
    given = {"data": arrays(), "progress": False, "runtime": "inprocess", "trials": 1, "epsilon": 50.0} | more
    return fedsim.sweep("quickstart", {"sweep": section}, **given)


@pytest.mark.parametrize("data", [arrays, frame])
def test_fields_of_an_object_are_varied_on_records_in_memory(data: Any) -> None:
    sweep = swept({"algorithm.pace": [0.5, 1.0]}, algorithm=Mine(3, shaped=stand_still), data=data())
    assert sweep.summary.runs.failed == 0
    assert sweep.combinations["algorithm.pace"] == [0.5, 1.0, 0.5, 1.0]
    moved = swept({"algorithm.pace": [0.5, 1.0]}, algorithm=Mine(3), data=data())
    stood = {row.loss for row in sweep.summary.combinations}
    assert len(stood) == 1, "the object's own function was called"
    assert max(row.loss for row in moved.summary.combinations) < min(stood)
    assert all_standing() == {}


def test_objects_stand_among_the_values_and_are_tuned_beside_names() -> None:
    named = {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 1.0, "clip_norm": 1.0}
    values = [Mine(3), {**named, "label": "named"}]
    tune = {"grid": {"algorithm.num_rounds": [2, 3]}, "repetitions": 1, "private": {"fraction": 0.3}}
    sweep = swept({"algorithm": values}, tune)
    assert sweep.summary.runs.failed == 0
    assert {row.varied["algorithm"] for row in sweep.summary.combinations} == {"Mine", "named"}


def test_a_batch_of_an_object_is_read_as_in_a_scenario() -> None:
    sampled = [{"sampler": "poisson", "fraction": 0.3}, {"sampler": "full"}]
    assert swept({"algorithm.batch": sampled}, algorithm=Mine(3)).summary.runs.failed == 0


def test_cells_of_an_object_are_not_resumed_and_those_of_records_are(tmp_path: Path) -> None:
    grid = {"privacy.epsilon": [1.0, 2.0]}
    for place, algorithm, kept in (("a", Mine(3), 0), ("b", None, 3)):
        runs = [swept(grid, algorithm=algorithm, out=tmp_path / place).summary.runs for _ in range(2)]
        assert (runs[1].from_cache, runs[1].made) == (kept, 3 - kept)


@pytest.mark.slow
def test_objects_travel_to_rays_workers() -> None:
    sweep = swept(
        {"algorithm.pace": [0.5, 1.0]}, algorithm=Mine(3, shaped=stand_still), runtime="ray", workers=1
    )
    assert sweep.summary.runs.failed == 0


@pytest.mark.parametrize(
    ("grid", "field"),
    [
        ({"algorithm.pase": [1.0]}, "scenario.sweep.grid.algorithm.pase"),
        ({"algorithm.pace": ["fast"]}, "scenario.sweep.grid.algorithm.pace"),
        ({"algorithm": [Mine(2, shaped=print), Mine(2, shaped=abs)]}, "algorithm"),
    ],
)
def test_what_is_wrong_is_named(grid: dict[str, Any], field: str) -> None:
    with refused(field):
        swept(grid, algorithm=Mine(3) if "algorithm" not in grid else None)
