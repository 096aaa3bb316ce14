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


@pytest.mark.parametrize("bound", ["limit", "smooth"])
def test_a_run_that_asks_for_h_is_the_one_that_is_given_it(bound: str) -> None:
    """Without noise: three quarters of the 72 persons have up to two records, and h is 2."""
    silos = read(resolve(parse(VISITS)), 0).silos
    counts = np.concatenate([np.unique(silo.train_persons, return_counts=True)[1] for silo in silos])
    assert (counts <= 2).mean() == 0.75
    rule = {"choose": "quantile", "share": 0.1, "q": 0.75, "largest": 8}
    asked, given, other = (
        fedsim.simulate(privacy(mechanism="none", unit={"name": "person", "bound": bound, "h": h})).model
        for h in (rule, 2, 3)
    )
    np.testing.assert_allclose(asked, given, rtol=0, atol=1e-12)
    assert np.abs(asked - other).max() > 1e-3


@pytest.mark.parametrize("mechanism", ["gaussian", "summed_gaussian"])
def test_a_private_run_asks_for_h(mechanism: str) -> None:
    unit = {"name": "person", "bound": "smooth", "h": {"choose": "quantile", "share": 0.1}}
    fraction = {} if mechanism == "gaussian" else {"honest_fraction": 1.0}
    run = fedsim.simulate(privacy(unit=unit, mechanism=mechanism, **fraction))
    assert np.isfinite(run.model).all()
    assert "of mu^2 contributions 0.1, training the rest" in run.summary.privacy.accountant
