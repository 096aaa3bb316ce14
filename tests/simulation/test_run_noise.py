"""Runs that are said to add up share no noise; what is one run has the same noise wherever it is done."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations as pairs
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import chi2
from support.run_keys import OTHER, SGD, TREE, baselines, changed, of_run, recorded, simulated

import fedsim
from fedsim.api.given import resolved_of
from fedsim.common.errors import InputError
from fedsim.report.outcome import Results
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import Resolved, resolve, with_nonce
from fedsim.simulation import trial as in_process
from fedsim.simulation.host import SiloHost
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.sweeps.job import job_of
from fedsim.simulation.trial import read


@pytest.fixture
def keys(monkeypatch):
    """See `run_keys.recorded`."""
    return recorded(monkeypatch)


def test_no_two_of_many_runs_of_one_seed_share_a_key(keys):
    """Of noise, batch or permutation, in any silo: also where only another silo's part is different, since
    what is broadcast then differs, and two answers at different points with equal noise tell all.
    """
    runs = [of_run(baselines(changed(TREE, changes)), keys) for changes in ({}, *OTHER.values())]
    assert {len(run) for run in runs} == {3}
    assert all(a.isdisjoint(b) for a, b in pairs(runs, 2))


SAME: dict[str, dict[str, Any]] = {
    "name": {"name": "another", "description": "words"},
    "trials": {"trials": 2},
    "measuring": {"report": {"evaluate_every": 3, "heterogeneity": True}},
    "runtime": {"runtime": {"name": "ray", "silo_hosts": 2}},
    "the same twice": {"privacy.epsilon": [1.0, 1.0, 1.0], "problem": {"name": "logistic_regression"}},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_changes_no_release_changes_no_key(changes, keys):
    """A run repeated is no second release."""
    assert of_run(TREE, keys) <= of_run(changed(TREE, changes), keys)


def test_a_field_at_its_default_changes_no_key():
    """Of a part that is loaded when it has a value too: what a version adds changes no run before it."""
    network = TREE | {"problem": {"name": "neural_network", "model": {"name": "mlp"}}}
    spelled = TREE | {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [64]}}}
    one, other = (run_digest(resolve(parse(tree)), "", "private") for tree in (network, spelled))
    assert one == other
    assert parse(spelled).problem.model_dump(exclude_defaults=True)["model"] == {"name": "mlp"}


def test_the_twin_tells_nothing_of_the_run_s_secret_batches(keys):
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


def test_files_may_lie_anywhere(keys, tmp_path):
    assert in_file(tmp_path / "here", keys) == in_file(tmp_path / "there", keys)


def test_one_record_of_another_silo_is_another_run(keys, tmp_path):
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
    """What hides the mean gradients of round 0, (silos d,): answers less those without noise."""
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
def test_the_noise_of_two_runs_is_uncorrelated(name):
    """A correlation of m independent pairs is below 5.1 / sqrt(m) but for one case in a million."""
    changes = OTHER[name] | ({"algorithm.clip_norm": 200.0} if name == "clip" else {})
    first, second = noise_of(WIDE_TREE), noise_of(changed(WIDE_TREE, changes))
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert abs(correlation) < 5.1 / math.sqrt(3 * WIDE)


def test_twice_the_one_model_minus_the_other_is_no_gradient_without_noise():
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
def test_two_runs_draw_other_batches(sampler):
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


# A run's digest: complete, and the same in every process.

PROGRAM = """
import sys, yaml
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import read
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
resolved = resolve(parse(yaml.safe_load(sys.stdin.read())))
print(run_digest(resolved, read(resolved, 0).digest, "private"))
"""


def test_a_digest_is_the_same_in_every_process():
    groups = {"weight": 0.1, "groups": {"size": 2}}
    tree = changed(
        TREE,
        {
            "problem": {
                "name": "neural_network",
                "model": {"name": "mlp", "hidden": [3]},
                "regulariser": {"group_lasso": groups},
            },
            "participation": {"name": "availability", "probability": [0.5, 0.6, 0.7]},
            "algorithm": {
                "name": "local_sgd",
                "local_steps": 2,
                "num_rounds": 2,
                "step_size": 0.1,
                "clip_norm": 1.0,
                "batch": {"sampler": "poisson", "fraction": 0.3},
            },
        },
    )
    resolved = resolve(parse(tree))
    here = run_digest(resolved, read(resolved, 0).digest, "private")
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=yaml.safe_dump(tree),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == here


# Runs of code that is not fedsim's share no noise, whatever that code is: each has a nonce.

CLIP = {"norm": 1.0}


@dataclass(frozen=True)
class Mine:
    """One round, whose clip nothing shows but what it does."""

    linear: ClassVar[bool] = True
    batch: fedsim.Batch = fedsim.FULL

    def server(self, w: Any, problem: Any, public: Any, rng: Any) -> Any:
        mean = yield fedsim.Round({"w": w}, answer=w)
        return w - 0.5 * mean["g"]

    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any:
        return {"g": ask(fedsim.Query("gradient", (broadcast["w"],), CLIP["norm"], self.batch))}


def digest(resolved: Resolved) -> str:
    return run_digest(resolved, "data", "private")


def test_two_runs_of_one_object_share_no_noise_and_a_scenario_repeats_its_own():
    first, second = (resolved_of(parse(TREE), Mine()) for _ in range(2))
    assert digest(first) != digest(second)
    assert digest(resolve(first.scenario)) == digest(first)


def test_one_nonce_does_not_make_one_run_of_two_schedules():
    scenario = parse(TREE | {"nonce": "0" * 32})
    runs = []
    for schedule in ((1.0, (2.0,)), (1.0, (3.0,)), (1.0, (3.0,))):
        algorithm = Mine()
        object.__setattr__(algorithm, "schedule", schedule)
        runs.append(digest(resolved_of(scenario, algorithm)))
    assert runs[0] != runs[1] == runs[2]


def test_a_run_of_shipped_parts_draws_no_nonce_and_one_of_others_keeps_its_own():
    assert with_nonce(parse(TREE)).nonce is None
    model = {"name": "module", "path": "torch.nn:Linear"}
    tree = changed(TREE, {"problem": {"name": "neural_network", "model": model}})
    first, second = (resolve(parse(tree)) for _ in range(2))
    assert first.scenario.nonce is not None
    assert len({digest(first), digest(second)}) == 2
    again = resolve(parse(first.scenario.model_dump(mode="json", exclude_none=True)))
    assert digest(again) == digest(first)
    with pytest.raises(InputError, match="nonce"):
        parse(tree | {"nonce": "short"})


def test_a_network_that_an_edit_changed_shares_no_noise(monkeypatch):
    tree = changed(TREE, {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [3]}}})
    before = digest(resolve(parse(tree)))
    assert digest(resolve(parse(tree))) == before
    monkeypatch.setattr(torch.nn, "ReLU", torch.nn.Tanh)
    assert digest(resolve(parse(tree))) != before


def test_with_equal_seeds_twice_one_model_minus_the_other_is_no_gradient_without_noise(monkeypatch):
    """w = -0.5 (g + sigma xi), and sigma doubles with a clip that a global holds and that binds nothing."""
    scenario = parse(
        changed(TREE, {"data": {"name": "synthetic", "rows": 120, "features": WIDE - 1}, "seed": 5})
    )
    models, z = [], [1.0]
    for clip in (100, 200):
        monkeypatch.setitem(CLIP, "norm", clip)
        resolved = resolved_of(scenario, Mine())
        results = Results()
        in_process.execute(resolved, results, lambda _: None)
        models.append(results.trials[0].models)
        opened = SiloHost(resolved, 0, read(resolved, 0)).open("private", [range(1)] * 3)
        z = [said.noise_multiplier for said in opened]
    gradient = models[0]["nonprivate"]
    assert torch.equal(gradient, models[1]["nonprivate"])
    parts = zip(resolved.weights, z, resolved.sizes, strict=True)
    sigma = 0.5 * math.sqrt(sum((p * m * 2 * 100.0 / n) ** 2 for p, m, n in parts))
    left = 2 * models[0]["private"] - models[1]["private"] - gradient
    low, high = chi2.ppf(FALSE_ALARM / 2, WIDE), chi2.isf(FALSE_ALARM / 2, WIDE)
    assert low < float(left.square().sum()) / (8 * sigma**2) < high  # of 2 xi - 2 xi', independent
    assert not low < float(left.square().sum()) / (8 * (2 * sigma) ** 2) < high  # a wrong scale is seen


def test_a_simulation_without_a_seed_draws_one_and_its_scenario_repeats_it(tmp_path):
    tree = {key: value for key, value in TREE.items() if key != "seed"}
    first, second = (fedsim.simulate(tree, out=tmp_path / name) for name in "ab")
    again = fedsim.simulate(tmp_path / "a" / "scenario.yaml")
    assert not np.array_equal(first.model, second.model)
    assert np.array_equal(first.model, again.model)
    assert "can draw the noise again" in (tmp_path / "a" / "scenario.yaml").read_text()
    job = job_of(tree | {"sweep": {"grid": {"algorithm.step_size": [0.1, 0.2]}}})
    assert {one.scenario.seed for one in job.combinations} == {job.tree["seed"]}


def test_a_run_of_an_object_repeats_by_its_file_and_not_without(tmp_path):
    first = fedsim.simulate(TREE, algorithm=Mine(), out=tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "scenario.yaml").read_text())
    again = fedsim.simulate(TREE, algorithm=Mine(), seed=written["seed"], nonce=written["nonce"])
    assert np.array_equal(first.model, again.model)
    assert not np.array_equal(first.model, fedsim.simulate(TREE, algorithm=Mine()).model)
