"""Runs that are said to add up share no noise; what is one run has the same noise wherever it is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations as pairs
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from scipy.stats import chi2
from support.run_keys import OTHER, SGD, TREE, changed, of_run, recorded, simulated, twins

from fedsim.results.outcome import Results
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import trial as in_process
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import read


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """See `run_keys.recorded`."""
    return recorded(monkeypatch)


@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER)
def test_two_runs_of_one_seed_share_no_key(changes: dict[str, Any], keys: list[int]) -> None:
    """Of noise, batch or permutation, in any silo: also where only another silo's part is different, since
    what is broadcast then differs, and two answers at different points with equal noise tell all.
    """
    first, second = of_run(twins(TREE), keys), of_run(twins(changed(TREE, changes)), keys)
    assert len(first) == len(second) == 3
    assert first.isdisjoint(second)


def test_no_two_of_many_runs_share_a_key(keys: list[int]) -> None:
    runs = [of_run(twins(changed(TREE, changes)), keys) for changes in ({}, *OTHER.values())]
    assert all(a.isdisjoint(b) for a, b in pairs(runs, 2))


SAME: dict[str, dict[str, Any]] = {
    "name": {"name": "another", "description": "words"},
    "trials": {"trials": 2},
    "measuring": {"report": {"evaluate_every": 3, "heterogeneity": True}},
    "runtime": {"runtime": {"name": "ray", "silo_hosts": 2}},
    "the same twice": {"privacy.epsilon": [1.0, 1.0, 1.0], "problem": {"name": "logistic_regression"}},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_changes_no_release_changes_no_key(changes: dict[str, Any], keys: list[int]) -> None:
    """A run repeated is no second release."""
    assert of_run(TREE, keys) <= of_run(changed(TREE, changes), keys)


def test_the_twin_tells_nothing_of_the_run_s_secret_batches(keys: list[int]) -> None:
    assert len(of_run(TREE, keys)) == 6


def in_file(folder: Path, keys: list[int], last: float = 0.5) -> list[int]:
    """Keys of a run on a table of three silos, in which the last record of the last silo is `last`."""
    folder.mkdir()
    rows = [f"{i / 50},{i % 2},{'abc'[i % 3]}\n" for i in range(59)] + [f"{last},1,c\n"]
    (folder / "table.csv").write_text("x,y,silo\n" + "".join(rows))
    (folder / "trace.csv").write_text("round,silo\n0,a\n1,b\n2,c\n3,a\n")
    schema = {
        "x": {"kind": "number", "lower": 0, "upper": 2},
        "y": {"kind": "category", "categories": ["0", "1"]},
        "silo": {"kind": "category", "categories": ["a", "b", "c"]},
    }
    tree = TREE | {
        "data": {"name": "csv", "path": "table.csv", "target": "y", "schema": schema},
        "partition": {"name": "natural_id", "partition_by": "silo"},
        "participation": {"name": "trace", "path": "trace.csv"},
    }
    (folder / "scenario.yaml").write_text(yaml.safe_dump(tree))
    keys.clear()
    in_process.execute(resolve(load(folder / "scenario.yaml", [])), Results(), lambda _: None)
    return list(keys)


def test_files_may_lie_anywhere(keys: list[int], tmp_path: Path) -> None:
    assert in_file(tmp_path / "here", keys) == in_file(tmp_path / "there", keys)


def test_one_record_of_another_silo_is_another_run(keys: list[int], tmp_path: Path) -> None:
    """It changes what is broadcast: at equal noise the silo's answers would differ by gradients alone."""
    first, second = in_file(tmp_path / "here", keys), in_file(tmp_path / "there", keys, last=0.75)
    assert set(first).isdisjoint(second)


WIDE = 400  # features: 3 silos show 3 * WIDE numbers of a round's noise
FALSE_ALARM = 1e-6
WIDE_TREE: dict[str, Any] = changed(
    TREE,
    {
        "data": {"name": "synthetic", "rows": 120, "features": WIDE - 1},
        "algorithm": SGD | {"clip_norm": 100.0, "last_iterate": True},
    },
)


def noise_of(tree: Mapping[str, Any]) -> torch.Tensor:
    """What hides the mean gradients of round 0, (silos d,): the answers, less those of a twin without it."""
    resolved = resolve(parse(tree))
    silos = SiloHost(resolved, 0, read(resolved, 0))
    rounds = [range(len(resolved.trace.plan.rounds))] * 3
    start = {"w": torch.zeros(WIDE, dtype=resolved.dtype)}
    answers = {}
    for variant in ("private", "nonprivate"):
        silos.open(variant, rounds)
        answers[variant] = silos.answer(variant, 0, start, None)["g"].double()
    return (answers["private"] - answers["nonprivate"]).flatten()


@pytest.mark.parametrize("name", ["clip", "step size", "rounds", "epsilon", "dtype", "weights"])
def test_the_noise_of_two_runs_is_uncorrelated(name: str) -> None:
    """A correlation of m independent pairs is below 5.1 / sqrt(m) but for one case in a million."""
    changes = OTHER[name] | ({"algorithm.clip_norm": 200.0} if name == "clip" else {})
    first, second = noise_of(WIDE_TREE), noise_of(changed(WIDE_TREE, changes))
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert abs(correlation) < 5.1 / math.sqrt(3 * WIDE)


def test_twice_the_one_model_minus_the_other_is_no_gradient_without_noise() -> None:
    """One round from zero: w = -eta (g + sigma xi). At twice the clip, which binds nothing, sigma doubles."""
    one = changed(WIDE_TREE, {"algorithm.num_rounds": 1})
    models = [
        next(iter(simulated(changed(one, {"algorithm.clip_norm": clip})).trials.values())).models
        for clip in (100.0, 200.0)
    ]
    gradient = models[0]["nonprivate"]  # -eta g
    assert torch.equal(gradient, models[1]["nonprivate"])
    resolved = resolve(parse(one))
    z = [
        said.noise_multiplier
        for said in SiloHost(resolved, 0, read(resolved, 0)).open("private", [range(1)] * 3)
    ]
    sigma = SGD["step_size"] * math.sqrt(
        sum((p * m * 2 * 100.0 / n) ** 2 for p, m, n in zip(resolved.weights, z, resolved.sizes, strict=True))
    )
    left = 2 * models[0]["private"] - models[1]["private"] - gradient
    statistic = float(left.square().sum()) / (8 * sigma**2)  # of 2 xi - 2 xi', independent: chi2 of d
    assert chi2.ppf(FALSE_ALARM / 2, WIDE) < statistic < chi2.isf(FALSE_ALARM / 2, WIDE)


@pytest.mark.parametrize("sampler", ["subsample", "poisson", "with_replacement", "fresh"])
def test_two_runs_draw_other_batches(sampler: str) -> None:
    """Amplification by sampling adds up only if each run draws anew; without noise a mean shows whose."""
    tree = changed(WIDE_TREE, {"privacy": {"mechanism": "none"}})
    tree["algorithm"]["batch"] = {"sampler": sampler, "fraction": 0.25}
    means = []
    for step in (0.5, 0.25):
        resolved = resolve(parse(changed(tree, {"algorithm.step_size": step})))
        silos = SiloHost(resolved, 0, read(resolved, 0))
        silos.open("nonprivate", [range(len(resolved.trace.plan.rounds))] * 3)
        means.append(silos.answer("nonprivate", 0, {"w": torch.zeros(WIDE, dtype=torch.float64)}, None)["g"])
    assert bool(((means[0] - means[1]).abs().amax(-1) > 1e-6).all())
