"""Runs folded into one are the runs alone."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.scenarios import BASE

from fedsim.algorithms.registry import algorithms
from fedsim.measure.evaluator import Evaluator
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.side_by_side import FIELDS, fold_key, run_fold, shared_key
from fedsim.simulation.sweeps.cell import cell_of
from fedsim.simulation.sweeps.engine import batches
from fedsim.simulation.trial import Trial, read

ROUNDS = {"num_rounds": 5, "step_size": 0.1, "clip_norm": 0.5}
SVRG = {"inner_steps": 2, "step_size": 0.1, "clip_norm": 0.5, "difference_clip": 0.4}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "noisy_minibatch_sgd": ROUNDS | {"strong_convexity": 0.1},
    "accelerated_minibatch_sgd": ROUNDS,
    "multi_stage_accelerated_minibatch_sgd": {"num_rounds": 12, "smoothness": 1.0, "strong_convexity": 1.0}
    | {"initial_excess": 1.0, "noise": 0.0, "clip_norm": 0.5},
    "localized_accelerated_sgd": {"phases": 1, "phase_rounds": 5, "step_size": 0.1, "clip_norm": 0.5}
    | {"regularisation": 0.1, "growth": 1.0},
    "prox_sgd": ROUNDS,
    "prox_svrg": SVRG | {"epochs": 2},
    "prox_pl_svrg": SVRG | {"restarts": 2, "epochs": 1},
    "prox_spider": ROUNDS | {"period": 2, "smoothness": 0.3},
    "spider_alternate": ROUNDS,
    "fedadam": ROUNDS | {"beta1": 0.5, "tau": 0.1},
    "fedprox": ROUNDS | {"local_steps": 3, "proximal_weight": 0.5},
    "scaffold": ROUNDS | {"local_steps": 3},
    "mean_regularised": ROUNDS | {"own_step_size": 0.2, "pull": 0.5, "averaging": 0.5},
    "local_sgd": ROUNDS | {"local_steps": 3, "batch": {"sampler": "subsample", "fraction": 0.1}},
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "softmax": {
        "data": {"name": "synthetic", "link": "softmax", "rows": 120, "features": 3},
        "problem": {"name": "softmax_regression", "constraint": {"name": "l2_ball", "radius": 0.2}},
    },
    "absolute": {
        "data": {"name": "synthetic", "link": "linear", "rows": 120, "features": 3},
        "problem": {"name": "absolute_error", "smoothing": {"beta": 2.0}, "ridge": {"weight": 0.1}},
    },
    "unequal silos": {"partition": {"name": "iid", "num_partitions": 3, "proportions": [1, 2, 5]}},
    "sparse groups": {
        "problem": {
            "name": "logistic_regression",
            "regulariser": {"l1": 0.01, "group_lasso": {"weight": 0.02, "groups": {"size": 2}}},
        }
    },
    "float32": {"runtime": {"name": "inprocess", "dtype": "float32"}},
    "no mechanism": {"privacy": {"mechanism": "none"}},
    "by a theorem": {"privacy": {"calibration": "theorem", "epsilon": "unlimited", "allow_violations": True}},
    "some silos a round": {"participation": {"name": "uniform", "num_silos": 2}},
    "some unequal silos a round": {
        "partition": {"name": "iid", "num_partitions": 3, "proportions": [1, 2, 5]},
        "participation": {"name": "uniform", "num_silos": 2},
    },
}
BATCHES: dict[str, dict[str, Any]] = {
    "poisson": {"sampler": "poisson", "fraction": 0.3},
    "fresh": {"sampler": "fresh", "fraction": 0.2},
    "with_replacement": {"sampler": "with_replacement", "fraction": 0.3},
    "part": {"sampler": "part", "start": 0.2, "stop": 0.6},
}
TRIALS = (0, 3)


def budget(privacy: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """The section at another epsilon, or claim of one."""
    if "mechanism" in privacy:
        return privacy
    return privacy | {"claimed_epsilon" if "calibration" in privacy else "epsilon": epsilon}


def check(tree: Mapping[str, Any]) -> None:
    """Every step size, clip norm and epsilon, in two trials, folded and alone."""
    algorithm = tree["algorithm"]
    numbers = [{}, {"clip_norm": 0.9}, {"step_size": 0.25, "clip_norm": 0.2}]
    trees = [
        tree
        | {
            "algorithm": algorithm | {k: v for k, v in some.items() if k in algorithm},
            "privacy": budget(tree["privacy"], epsilon),
        }
        for some in numbers
        for epsilon in (1.0, 4.0)
    ]
    assert len({fold_key(cell_of(parse(each), 0, False).scenario) for each in trees}) == 1
    configs = [resolve(parse(each)) for each in trees]
    data = {trial: read(configs[0], trial) for trial in TRIALS}
    tolerance = 1e-9 if configs[0].dtype == torch.float64 else 1e-4
    for config, outcomes in zip(configs, run_fold(configs, data), strict=True):
        for trial, outcome in zip(TRIALS, outcomes, strict=True):
            alone = Trial(
                config,
                trial,
                SiloHost(config, trial, data[trial], shared_key(config, data[trial])),
                Evaluator(config.problem, data[trial].silos, config.dtype),
                data[trial],
            )
            alone.advance(1e9)
            result = alone.result()
            model = next(iter(result.models.values()))
            assert torch.allclose(outcome.model, model, rtol=tolerance, atol=tolerance)
            assert outcome.admitted == [said.admitted for said in result.statements]
    assert not torch.allclose(outcome.model, torch.zeros_like(outcome.model))


@pytest.fixture
def tree() -> dict[str, Any]:
    report = {"nonprivate_baseline": False}
    return BASE | {"report": report, "algorithm": {"name": "noisy_minibatch_sgd", **ROUNDS}}


def test_the_table_has_every_algorithm() -> None:
    """Those of other statistics than gradients run alone: their noise is looked at."""
    alone = {name for name, kind in algorithms().items() if getattr(kind, "any_size", False)}
    assert set(ALGORITHMS) == set(algorithms()) - alone
    for name in alone:
        assert (
            fold_key(BASE | {"problem": {"name": "linear_regression"}, "algorithm": {"name": name}}) is None
        )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_folds(name: str, tree: dict[str, Any]) -> None:
    check(tree | {"algorithm": {"name": name, **ALGORITHMS[name]}})


@pytest.mark.parametrize("changes", PROBLEMS.values(), ids=PROBLEMS)
def test_problems_fold(changes: dict[str, Any], tree: dict[str, Any]) -> None:
    check(tree | changes)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_samplers_fold(batch: dict[str, Any], tree: dict[str, Any]) -> None:
    check(tree | {"algorithm": tree["algorithm"] | {"batch": batch}})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_numbers_that_fold_do_not_change_a_plan(name: str, tree: dict[str, Any]) -> None:
    """A fold is admitted by the plan of its first run."""
    algorithm = {"name": name, **ALGORITHMS[name]}
    plans = [resolve(parse(tree | {"algorithm": algorithm})).trace]
    for field in FIELDS:
        if field in algorithm:
            changed = algorithm | {field: algorithm[field] * 3.7}
            plans.append(resolve(parse(tree | {"algorithm": changed})).trace)
    assert len(set(plans)) == 1


@pytest.mark.parametrize("name", ["prox_spider", "spider_alternate", "prox_svrg"])
def test_a_theorems_noise_on_differences_of_their_own_clip_keeps_clips_apart(
    name: str, tree: dict[str, Any]
) -> None:
    """The noise of differences over that of gradients, which a plan has, is as 2 L over their clip."""
    privacy = {"calibration": "theorem", "epsilon": "unlimited", "allow_violations": True}
    algorithm = {"name": name, **ALGORITHMS[name], "difference_clip": 0.5}
    algorithm.pop("smoothness", None)  # with it the theorem bounds differences by it
    trees = [
        tree | {"privacy": privacy | {"claimed_epsilon": epsilon}, "algorithm": algorithm | some}
        for some in ({"step_size": 0.1}, {"clip_norm": 0.9})
        for epsilon in (1.0, 4.0)
    ]
    keys = [fold_key(cell_of(parse(each), 0, False).scenario) for each in trees]
    assert None not in keys
    assert keys[0] == keys[1] != keys[2] == keys[3]
    ratios = [resolve(parse(each)).algorithm.difference_noise_ratio for each in trees]
    assert ratios[1] == pytest.approx(ratios[0])
    assert ratios[3] == pytest.approx(ratios[2]) != pytest.approx(ratios[0])


def test_automatic_rounds_follow_from_epsilon_so_that_only_trials_fold(tree: dict[str, Any]) -> None:
    chosen = dict.fromkeys(("num_rounds", "step_size", "clip_norm"), "auto")
    algorithm = {"name": "noisy_minibatch_sgd", **chosen}
    trees = [tree | {"algorithm": algorithm, "privacy": {"epsilon": epsilon}} for epsilon in (0.5, 8.0)]
    cells = [cell_of(parse(each), trial, False) for each in trees for trial in range(2)]
    assert [len(batch) for batch in batches(cells)] == [2, 2]
    rounds = [resolve(parse(each)).algorithm.num_rounds for each in trees]
    assert rounds[0] < rounds[1]
    check(tree | {"algorithm": algorithm | {"num_rounds": 4}})  # steps and clips fold, automatic or not


def test_what_does_not_fold_runs_alone(tree: dict[str, Any]) -> None:
    given = {"privacy": {"epsilon": 1.0, "calibration": "sigma", "noise_multiplier": 9.0}}
    cells = [cell_of(parse(tree | given), trial, False) for trial in range(3)]
    assert [len(batch) for batch in batches(cells)] == [1, 1, 1]
