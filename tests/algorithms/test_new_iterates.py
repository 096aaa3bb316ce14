"""Weighted means, stages and alternate differences, written out beside the code."""

from dataclasses import replace
from math import ceil, sqrt

import numpy as np
import pytest
import torch
from support.helpers import LIMITS, iterates, public_of, silos_of
from torch import Tensor

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.multi_stage_accelerated_minibatch_sgd import MultiStageAcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.algorithms.spider_alternate import SPIDERAlternate
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.dryrun import dry_run

SIZES = (20, 30)
PROBLEM = LinearRegression(3, composite=Composite(l1=0.05, l2=0.1))
DATA = silos_of(PROBLEM, SIZES, seed=2)


def answers(algorithm: Algorithm, epsilon: float = np.inf) -> list[Tensor]:
    return iterates(algorithm, PROBLEM, DATA, epsilon=epsilon)


@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0])
def test_the_mean_has_the_weights_of_the_theorem(mu: float) -> None:
    """gamma_r = (1 - mu eta)^-(r + 1), over a run with noise, whose iterates all differ."""
    step, rounds = 0.3, 25
    settings = {"num_rounds": rounds, "step_size": step, "clip_norm": 1.0}
    visited = answers(NoisyMinibatchSGD(**settings, last_iterate=True), epsilon=1.0)
    means = answers(NoisyMinibatchSGD(**settings, strong_convexity=mu), epsilon=1.0)
    for r in range(rounds):
        weights = (1 - mu * step) ** -np.arange(1.0, r + 2)
        expected = np.average([w.numpy() for w in visited[: r + 1]], axis=0, weights=weights)
        np.testing.assert_allclose(means[r], expected, rtol=1e-10)
    assert torch.equal(means[-1], means[-2])
    assert not torch.equal(visited[-1], visited[-2])


@pytest.mark.parametrize(("share", "rounds"), [(0.0, 1), (0.3, 2), (1.0, 5)])
def test_the_mean_of_the_last_iterates_alone_is_answered(share: float, rounds: int) -> None:
    plain = ProxSGD(num_rounds=5, step_size=0.1, clip_norm=9.0)
    visited = answers(plain)
    assert torch.equal(torch.stack(answers(replace(plain, average_last=share))[:2]), torch.stack(visited[:2]))
    mean = answers(replace(plain, average_last=share))[-1]
    torch.testing.assert_close(mean, torch.stack(visited[-rounds:]).mean(0))


def test_weights_that_would_overflow_do_not() -> None:
    """(1 - 0.9)^-400 is beyond float64; relative to the last weight none is."""
    settings = {"num_rounds": 400, "step_size": 0.5, "clip_norm": 1.0}
    visited = answers(NoisyMinibatchSGD(**settings, last_iterate=True), epsilon=1.0)
    found = answers(NoisyMinibatchSGD(**settings, strong_convexity=1.8), epsilon=1.0)[-1]
    weights = (1 - 1.8 * 0.5) ** np.arange(399.0, -1, -1)
    np.testing.assert_allclose(found, np.average([w.numpy() for w in visited[:-1]], 0, weights), rtol=1e-10)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_stages_are_the_theorems_and_restart_algorithm_1(noise: float) -> None:
    beta, mu, excess, budget = 2.0, 0.5, 4.0, 400
    multi = MultiStageAcceleratedMinibatchSGD(
        num_rounds=budget,
        smoothness=beta,
        strong_convexity=mu,
        initial_excess=excess,
        clip_norm=1.0,
        noise=noise,
    )
    expected, k = [], 1
    while True:
        rounds = ceil(max(4 * sqrt(2 * beta / mu), 128 * noise**2 / (3 * mu * excess * 2 ** -(k + 1))))
        if sum(r for r, _ in expected) + rounds > budget:
            break
        root = sqrt(mu * noise**2 / (3 * excess * 2 ** -(k - 1) * rounds * (rounds + 1) * (rounds + 2)))
        expected.append((rounds, max(2 * beta, root)))
        k += 1
    stages = list(multi.stages())
    assert [rounds for rounds, _ in stages] == [rounds for rounds, _ in expected]
    np.testing.assert_allclose([v for _, v in stages], [v for _, v in expected], rtol=1e-12)
    assert len({rounds for rounds, _ in stages}) > 1 if noise else len(stages) == budget // 12
    first = AcceleratedMinibatchSGD(stages[0][0], 1 / stages[0][1], 1.0, mu)
    alone, whole = answers(first), answers(multi)
    for mine, theirs in zip(whole, alone, strict=False):
        assert torch.equal(mine, theirs)
    assert len(whole) == sum(rounds for rounds, _ in stages) + 1


def test_alternate_spider_without_noise_takes_exact_proximal_steps() -> None:
    """Every estimate is the gradient itself, so that it goes where SPIDER of period 2 goes."""
    settings = {"num_rounds": 7, "step_size": 0.3, "clip_norm": 1.0}
    mine, theirs = answers(SPIDERAlternate(**settings)), answers(ProxSPIDER(period=2, **settings))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_an_alternate_difference_has_a_clip_of_its_own() -> None:
    asked = []

    def ask(query: object) -> Tensor:
        asked.append(query)
        return torch.full((2, 3), 0.25, dtype=torch.float64)

    algorithm = SPIDERAlternate(num_rounds=2, step_size=0.3, clip_norm=2.0, difference_clip=0.5)
    w = torch.zeros(3, dtype=torch.float64)
    first = algorithm.silo(PROBLEM, {"w": w}, ask, {})["h"]
    second = algorithm.silo(PROBLEM, {"w": w + 1, "previous": w}, ask, {})["h"]
    assert [(query.statistic, query.clip) for query in asked] == [
        ("gradient", 2.0),
        ("gradient_difference", 0.5),
    ]
    assert torch.equal(asked[1].points[0] - asked[1].points[1], w + 1)
    assert (first == 0.25).all()
    assert (second == 0.25).all()


def test_a_difference_and_the_gradient_after_it_are_asked_of_the_same_silos() -> None:
    """Algorithm 25 draws one set an iteration of its loop, which has two messages."""
    trace = dry_run(
        SPIDERAlternate(num_rounds=6, step_size=0.3, clip_norm=1.0), PROBLEM, public_of(SIZES), 0, LIMITS
    )
    kinds = [asks[0].queries[0].statistic for asks in trace.plan.rounds]
    assert kinds == ["gradient", "gradient_difference"] * 3
    assert trace.holds == (False, False, True, False, True, False)


@pytest.mark.parametrize("kind", [ProxSPIDER, SPIDERAlternate])
def test_a_random_iterate_is_one_of_those_visited(kind: type[Algorithm]) -> None:
    settings = {"num_rounds": 6, "step_size": 0.3, "clip_norm": 1.0}
    settings |= {"period": 2} if kind is ProxSPIDER else {}
    visited = answers(kind(**settings))[1:]
    returned = answers(kind(**settings, random_iterate=True))[-1]
    assert any(torch.equal(returned, w) for w in visited)
