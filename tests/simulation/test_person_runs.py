"""Runs whose unit is the person: the records of a run, its parts and its hosts."""

from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.data.arrays import Arrays
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import read

VISITS: dict[str, Any] = {
    "name": "visits",
    "data": {"name": "visits", "num_silos": 3, "persons_per_silo": 30},
    "partition": "natural_id",
    "problem": "logistic_regression",
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 3, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"unit": "person", "epsilon": 1.0},
    "runtime": "inprocess",
    "trials": 1,
    "seed": 0,
}


def privacy(**more: Any) -> dict[str, Any]:
    return VISITS | {"privacy": VISITS["privacy"] | more}


def test_everything_public_counts_persons() -> None:
    resolved = resolve(parse(VISITS))
    assert resolved.sizes == (24, 24, 24)
    assert resolved.deltas == (1 / 24**2,) * 3
    records = read(resolved, 0)
    assert any(len(silo.train_target) > 24 for silo in records.silos)
    host = SiloHost(resolved, 0, records)
    host.open("private", [range(3)] * 3)  # a gate refuses records of another number of units


@pytest.mark.parametrize("bound", ["clip", "mean", {"name": "person", "bound": "limit", "h": 2}])
def test_a_run_is_repeatable(bound: Any) -> None:
    unit = bound if isinstance(bound, dict) else {"name": "person", "bound": bound}
    one, other = (fedsim.simulate(privacy(unit=unit)) for _ in range(2))
    assert one.summary.metrics == other.summary.metrics


def test_one_record_a_person_is_the_record_run() -> None:
    """But for the noise, whose keys differ: so compared without it."""
    rng = np.random.default_rng(0)
    features, silo = rng.uniform(-1, 1, (90, 3)), np.repeat(["a", "b", "c"], 30)
    target = (features.sum(axis=1) > 0).astype(int)
    data = Arrays(features, target, silo, person=[f"p{k}" for k in range(90)])
    tree = {key: value for key, value in VISITS.items() if key != "data"}
    for unit in (
        "person",
        {"name": "person", "bound": "mean"},
        {"name": "person", "bound": "smooth", "h": 1},
    ):
        one, other = (
            fedsim.simulate(tree | {"privacy": {"unit": each, "mechanism": "none"}}, data=data).summary
            for each in ("record", unit)
        )
        assert one.metrics == other.metrics
        assert one.participation == other.participation
