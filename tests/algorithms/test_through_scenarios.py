"""Algorithms as a scenario runs them: the non-private baseline, and silos that differ in everything."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtr
from support.algorithm_table import ROWS, Row
from support.helpers import FALSE_ALARM
from support.refusals import refused

from fedsim.protocol.batch import FULL, Full
from fedsim.report.outcome import TrialResult
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.trial import trial_of

every_algorithm = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def section_of(row: Row) -> dict[str, Any]:
    """The scenario section of a few rounds on full batches."""
    algorithm = row.short(FULL)
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return {"name": row.name} | {k: v for k, v in values.items() if not isinstance(v, Full)}


def played(algorithm: dict[str, Any], privacy: dict[str, Any], trial: int = 0, **more: Any) -> TrialResult:
    tree = {
        "name": "test",
        "data": {"name": "synthetic", "rows": 200, "features": 3},
        "partition": {"name": "iid", "num_partitions": 4},
        "problem": "logistic_regression",
        "algorithm": algorithm,
        "privacy": privacy,
        "runtime": "inprocess",
        "report": {"baselines": False},
    }
    running = trial_of(resolve(parse(tree | more)), trial)
    while not running.finished:
        running.advance(1.0)
    return running.result()


@every_algorithm
def test_the_non_private_baseline_is_the_run_with_mechanism_none(row: Row) -> None:
    both = played(section_of(row), {"epsilon": 1.0}).models
    alone = played(section_of(row), {"mechanism": "none"}).models
    assert torch.equal(both["nonprivate"], next(iter(alone.values())))
    assert not torch.equal(both["private"], both["nonprivate"])


MULTI_STAGE = {"name": "multi_stage_accelerated_minibatch_sgd", "smoothness": 1.0, "strong_convexity": 0.5}


@pytest.mark.parametrize(
    ("section", "field", "value", "limit"),
    [
        ({"step_size": 1.0, "strong_convexity": 2.0}, "strong_convexity", 2.0, "1 / eta = 1"),
        (MULTI_STAGE | {"initial_excess": 1.0, "noise": 0.0}, "num_rounds", 5, "8"),
    ],
)
def test_numbers_at_odds_are_named_with_their_section(
    section: dict[str, Any], field: str, value: float, limit: str
) -> None:
    base = {"name": "noisy_minibatch_sgd", "num_rounds": 5, "clip_norm": 1.0}
    with refused(f"scenario.algorithm.{field}", value, limit):
        played(base | section, {"epsilon": 1.0})


SIZES = (20, 60, 120)
EPSILONS = (0.5, 1.0, 3.0)
DELTAS = (1e-3, 1e-5, 1e-6)
WEIGHTS = (0.5, 0.3, 0.2)
ROUNDS, STEP, CLIP = 2, 0.5, 1.5


def _unbalanced(trial: int) -> TrialResult:
    algorithm = {
        "name": "noisy_minibatch_sgd",
        "num_rounds": ROUNDS,
        "step_size": STEP,
        "clip_norm": CLIP,
        "strong_convexity": 1 / STEP,  # all weight on the last iterate broadcast: one noisy step
    }
    return played(
        algorithm,
        {"epsilon": EPSILONS, "delta": DELTAS},
        trial,
        data={"name": "synthetic", "rows": 300, "features": 8, "test_fraction": 0.2},
        partition={"name": "size", "partition_sizes": [25, 75, 150]},
        problem={"name": "logistic_regression", "silo_weights": WEIGHTS},
    )


def test_every_silo_keeps_its_own_budget_by_the_closed_form() -> None:
    """Theorem 140's setting: n_i, eps_i and delta_i differ, and every transcript costs its own eps_i.

    R Gaussian releases at multiplier z are one of mu = sqrt(R) / z, whose delta at eps is known exactly.
    """
    statements = _unbalanced(0).statements
    assert [s.admitted.terms.n for s in statements] == list(SIZES)
    multipliers = [s.admitted.noise_multiplier for s in statements]
    assert multipliers[0] > multipliers[1] > multipliers[2]
    for multiplier, epsilon, delta in zip(multipliers, EPSILONS, DELTAS, strict=True):
        mu = ROUNDS**0.5 / multiplier
        exact = ndtr(-epsilon / mu + mu / 2) - np.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
        assert 0.99 * delta <= exact <= delta * (1 + 1e-9)


def test_the_noise_of_the_mean_is_that_of_every_silo_at_its_own_weight() -> None:
    """After one step from 0: variance eta^2 sum_i p_i^2 (z_i 2 C / n_i)^2 a coordinate, and no other.

    At 0 a record's gradient is half its feature vector, shorter than C, so that the baseline's step differs
    from the private one by its noise alone.
    """
    results = [_unbalanced(trial) for trial in range(60)]
    multipliers = np.array([s.admitted.noise_multiplier for s in results[0].statements])

    def expected(weights: tuple[float, ...]) -> float:
        one = (STEP * np.array(weights) * multipliers * 2 * CLIP / np.array(SIZES)) ** 2
        return float(one.sum())

    ends = np.array([r.models["private"].numpy() - r.models["nonprivate"].numpy() for r in results]).ravel()

    def tail(weights: tuple[float, ...]) -> float:
        statistic = np.square(ends).sum() / expected(weights)
        return float(2 * min(stats.chi2.cdf(statistic, ends.size), stats.chi2.sf(statistic, ends.size)))

    assert tail(WEIGHTS) > FALSE_ALARM
    assert tail((1 / 3,) * 3) < FALSE_ALARM
    assert tail((0.1, 0.3, 0.6)) < FALSE_ALARM
