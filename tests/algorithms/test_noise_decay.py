"""Noise that falls over the rounds: at the cost of equal noise, with less of it in the last iterate."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import fedsim
from fedsim.algorithms.base import noise_ratios
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.common.errors import InputError, Refused
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.batch import FULL, Part, Subsample
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import preview
from tests.support.helpers import drive, open_gate, plan_of, public_of
from tests.support.scenarios import BASE, changed

LAST: dict[str, Any] = {"algorithm.last_iterate": True}


def numbers(decay: float, rounds: int, **more: Any) -> NoisyMinibatchSGD:
    return NoisyMinibatchSGD(rounds, 0.05, 1.0, last_iterate=True, noise_decay=decay, **more)


@pytest.mark.parametrize("rounds", [1, 7, 100])
@pytest.mark.parametrize("decay", [0.9, 0.95, 1.0])
def test_ratios_cost_what_equal_noise_does_and_the_last_iterate_has_least(decay: float, rounds: int) -> None:
    found = np.array(noise_ratios(decay, rounds))
    assert (1 / found**2).sum() == pytest.approx(rounds, rel=1e-12)
    assert found[:-1] / found[1:] == pytest.approx(decay**-0.5)
    blocks = np.array(noise_ratios(decay, rounds, 8))
    assert len(blocks) == min(8, rounds)
    sizes = np.bincount(np.arange(rounds) * len(blocks) // rounds)
    assert (sizes / blocks**2).sum() == pytest.approx(rounds, rel=1e-12)
    passed = decay ** np.arange(rounds - 1, -1.0, -1.0)
    least = math.sqrt((passed**2 * found**2).sum())
    rng = np.random.default_rng(0)
    for _ in range(20):  # no other ratios of that cost have less noise in the last iterate
        other = found * np.exp(rng.normal(0, 0.3, rounds))
        other *= np.sqrt((1 / other**2).sum() / rounds)
        assert math.sqrt((passed**2 * other**2).sum()) >= least * (1 - 1e-12)


def last_noise(decay: float, repeats: int) -> tuple[float, float]:
    """Root mean square of the noise in the last iterate, and epsilon, of a run on a quadratic: features are
    unit vectors, so that with step d eta = 0.05 each round contracts by 0.95, and no record is clipped.
    """
    d, squares = 100, []
    data, problem = [(np.eye(d), np.zeros(d))], LinearRegression(d)
    algorithm = NoisyMinibatchSGD(100, 0.05 * d, 1e3, last_iterate=True, noise_decay=decay)
    plan = plan_of(algorithm, problem, (d,))
    for seed in range(repeats):
        gate = open_gate(data, problem, algorithm, plan=plan, seed=seed, epsilon=1e4)
        *_, last = drive(gate, algorithm, problem, public_of((d,)), [[0]] * 100)
        squares.append(float(last.answer.square().mean()))
    return math.sqrt(np.mean(squares)), gate.admitted[0].epsilon_guaranteed


def test_the_last_iterate_of_a_contracting_run_has_less_noise_at_the_same_epsilon() -> None:
    (equal, epsilon), (falling, same) = last_noise(1.0, 15), last_noise(0.95, 15)
    assert same == pytest.approx(epsilon, rel=1e-9)
    expected = math.sqrt(100 * sum(0.95 ** (2 * k) for k in range(100))) / sum(0.95**k for k in range(100))
    assert expected == pytest.approx(1.61, abs=0.005)
    assert equal / falling == pytest.approx(1.61, abs=0.1)  # 1,500 numbers each: 2.6 % off


@pytest.mark.parametrize("name", ["noisy_minibatch_sgd", "prox_sgd", "accelerated_minibatch_sgd", "fedadam"])
def test_each_round_has_its_ratio_and_decay_1_is_the_plan_without(name: str) -> None:
    more = {"last_iterate": True} if name == "noisy_minibatch_sgd" else {}
    algorithm = {"name": name, "num_rounds": 12, "step_size": 0.5, "clip_norm": 1.0, **more}
    one, plain, falling = (
        resolve(parse(changed(BASE, {"algorithm": algorithm | decay})))
        for decay in ({"noise_decay": 1.0}, {}, {"noise_decay": 0.9})
    )
    assert one.trace.plan.digest == plain.trace.plan.digest
    ratios = [asks[0].queries[0].noise_ratio for asks in falling.trace.plan.rounds]
    assert ratios == list(noise_ratios(0.9, 12))
    for a, b in zip(preview(plain), preview(falling), strict=True):
        assert b.epsilon_guaranteed == pytest.approx(a.epsilon_guaranteed, rel=1e-9)
        assert b.noise_multiplier == pytest.approx(a.noise_multiplier, rel=1e-6)


def test_with_batches_drawn_at_random_there_are_eight_ratios_and_parts_are_as_full_batches() -> None:
    for batch, count in ((Subsample(0.5), 8), (Part(0.0, 0.5), 40), (FULL, 40)):
        plan = plan_of(numbers(0.95, 40, batch=batch), LinearRegression(3), (20,))
        assert len({query.noise_ratio for query in plan.queries}) == count


def test_runs_side_by_side_and_under_sums_have_the_schedule_too() -> None:
    tree = changed(BASE, {**LAST, "algorithm.noise_decay": 0.8, "trials": 1})
    swept = fedsim.sweep(
        changed(tree, {"sweep": {"grid": {"algorithm.step_size": [0.1, 0.5]}}}), progress=False
    )
    alone = fedsim.simulate(changed(tree, {"algorithm.step_size": 0.1}), progress=False)
    assert all(each.error is not None for each in swept.summary.combinations)
    assert alone.summary.privacy.silos[0].epsilon_guaranteed == pytest.approx(1.0, abs=1e-3)
    for mechanism in ("summed_gaussian", "shuffled_binomial"):
        sums = changed(tree, {"privacy": {"epsilon": 1, "mechanism": mechanism, "honest_fraction": 1}})
        found = fedsim.simulate(sums, progress=False).summary
        assert found.metrics.error is not None
        assert 0 < (found.privacy.silos[0].epsilon_guaranteed or 0) <= 1


def test_a_silo_answers_a_round_under_its_own_name_alone() -> None:
    resolved = resolve(parse(changed(BASE, {**LAST, "algorithm.noise_decay": 0.8})))
    algorithm, problem = numbers(0.8, 4), LinearRegression(3)
    data = [(np.eye(3), np.zeros(3))]
    gate = open_gate(data, problem, algorithm)
    with pytest.raises(Refused, match="the plan has"):  # the noise of a later round
        gate.answer(0, {"block 3": torch.zeros(3, dtype=torch.float64)})
    assert [dict(each) for each in resolved.trace.broadcasts] == [{f"block {r}": 4} for r in range(4)]


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"algorithm.noise_decay": 0.0}, "noise_decay", "greater than 0"),
        ({"algorithm.noise_decay": 1.5}, "noise_decay", "less than or equal to 1"),
        ({"algorithm.noise_decay": 0.5, "algorithm.num_rounds": 100}, "noise_decay", "at least 0.756"),
        ({"algorithm.batch": {"sampler": "fresh", "fraction": 0.25}}, "noise_decay", "fresh"),
        ({"algorithm.last_iterate": False}, "noise_decay", "last_iterate: true"),
        ({"algorithm.num_rounds": "auto"}, "noise_decay", "auto"),
        ({"algorithm.parameters": "theorem", "algorithm.step_size": None}, "noise_decay", "theorems"),
        (
            {"privacy": {"epsilon": "unlimited", "calibration": "theorem", "claimed_epsilon": 1}},
            "noise_decay",
            "theorems",
        ),
    ],
)
def test_what_no_schedule_serves_is_named(changes: dict[str, Any], field: str, hint: str) -> None:
    tree = changed(BASE, {**LAST, "algorithm.noise_decay": 0.9, **changes})
    with pytest.raises(InputError, match=hint) as caught:
        resolve(parse(tree))
    assert caught.value.field == f"scenario.algorithm.{field}"
