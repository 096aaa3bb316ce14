"""What the variance-reduced and accelerated algorithms do, on full batches without noise."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from support.helpers import FALSE_ALARM, drive, open_gate, plan_of, public_of, silos_of
from torch import Tensor

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_pl_svrg import ProxPLSVRG
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.common.errors import InputError
from fedsim.common.seeds import server_rng
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression
from fedsim.protocol.contract import Algorithm
from server.participation import schedule

SIZES = (20, 30, 50)
PROBLEM = LogisticRegression(4, 1, Composite(l1=0.02, l2=0.01))
DATA = silos_of(PROBLEM, SIZES, seed=3)


def iterates(
    algorithm: Algorithm,
    problem: GeneralisedLinear = PROBLEM,
    data: list[tuple[np.ndarray, np.ndarray]] = DATA,
) -> list[Tensor]:
    """What the server would return before each round, and at the end."""
    sizes = [len(y) for _, y in data]
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    rounds = schedule(len(data), None, [False] * len(plan_of(algorithm, problem, sizes).rounds), 0, 0)
    return [p.answer for p in drive(gate, algorithm, problem, public_of(sizes), rounds)]


REFERENCE = iterates(ProxSGD(num_rounds=12, step_size=0.3, clip_norm=1.0))


@pytest.mark.parametrize("period", [1, 3, 20])
def test_spiders_corrections_add_up_to_the_gradient(period: int) -> None:
    found = iterates(ProxSPIDER(num_rounds=12, period=period, step_size=0.3, clip_norm=1.0))
    for mine, expected in zip(found, REFERENCE, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_svrgs_corrected_anchor_gradient_is_the_gradient() -> None:
    svrg = ProxSVRG(epochs=3, inner_steps=4, step_size=0.3, clip_norm=1.0, difference_clip=2.0)
    steps = [answer for r, answer in enumerate(iterates(svrg)[:-1]) if r % 5 > 0]
    for mine, expected in zip(steps, REFERENCE, strict=False):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_svrg_returns_an_inner_iterate_drawn_from_the_public_seed() -> None:
    svrg = ProxSVRG(epochs=2, inner_steps=3, step_size=0.3, clip_norm=1.0, difference_clip=2.0)
    returned = iterates(svrg)[-1]
    assert any(torch.allclose(returned, w, rtol=1e-10) for w in REFERENCE[:6])
    assert torch.equal(iterates(svrg)[-1], returned)


def test_svrg_returns_each_point_that_a_step_is_taken_from_alike_and_never_the_last_one() -> None:
    """Steps of -1 from 0: the points of Algorithm 2 are w_0 .. w_{Q-1} of each epoch, here 0 .. 5."""
    svrg = ProxSVRG(epochs=2, inner_steps=3, step_size=1.0, clip_norm=1.0, difference_clip=2.0)
    problem, public = LinearRegression(1), public_of((5,))
    one = torch.ones(1, dtype=torch.float64)
    returned = []
    for seed in range(600):
        coroutine = svrg.server(0 * one, problem, public, server_rng(seed))
        try:
            step = next(coroutine)
            while True:
                step = coroutine.send({"d": 0 * one} if "w" in step.broadcast else {"g": one})
        except StopIteration as stop:
            returned.append(-round(float(stop.value)))
    counts = np.bincount(returned)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_svrg_with_one_step_would_return_its_start_and_is_refused() -> None:
    with pytest.raises(InputError, match=r"inner_steps.*at least 2 where epochs is 1"):
        ProxPLSVRG(restarts=5, epochs=1, inner_steps=1, step_size=1.0, clip_norm=1.0, difference_clip=2.0)


def test_pl_svrg_restarts_from_where_the_run_before_ended() -> None:
    inner = {"epochs": 1, "inner_steps": 4, "step_size": 0.3, "clip_norm": 1.0, "difference_clip": 2.0}
    answers = iterates(ProxPLSVRG(restarts=3, **inner))
    starts = [answers[0], answers[5], answers[10], answers[-1]]
    at = [next(i for i, w in enumerate(REFERENCE) if torch.allclose(w, s, rtol=1e-10)) for s in starts]
    assert at[0] == 0
    assert at[-1] > 0
    assert all(0 <= after - before < 4 for before, after in pairwise(at))


@pytest.mark.parametrize(("step", "expected"), [(0.0, 1e-6), (0.1, 0.05), (100.0, 4.0)])
def test_spiders_noise_shrinks_with_the_step_where_smoothness_is_known(step: float, expected: float) -> None:
    """beta |step|, at most 2 C, and never below the least clip that a silo answers."""
    spider = ProxSPIDER(num_rounds=4, period=2, step_size=0.1, clip_norm=2.0, smoothness=0.5)
    asked: list[object] = []

    def ask(query: object) -> Tensor:
        asked.append(query)
        return torch.zeros(1, 4)

    w = torch.zeros(4, dtype=torch.float64)
    moved = w.clone()
    moved[0] = step
    spider.silo(PROBLEM, {"w": moved, "previous": w}, ask, {})  # type: ignore[arg-type]
    assert float(asked[0].clip) == pytest.approx(expected)  # type: ignore[attr-defined]


def test_acceleration_beats_plain_steps_on_an_ill_conditioned_quadratic() -> None:
    """Condition number 1,000: the excess risk after 150 rounds is far below that of either plain method."""
    scale = np.array([1.0, 0.3, 0.1, 1000**-0.5])
    x = np.diag(scale).repeat(4, 0) * 2  # the Hessian is diag(scale^2)
    truth = np.array([1.0, -1.0, 1.0, 1.0])
    data = [(x, x @ truth)] * 2
    problem = LinearRegression(4)

    def excess(algorithm: Algorithm) -> float:
        error = iterates(algorithm, problem, data)[-1].numpy() - truth
        return float((scale**2 * error**2).sum() / 2)

    accelerated = excess(AcceleratedMinibatchSGD(num_rounds=150, step_size=0.5, clip_norm=1.0))
    plain = min(
        excess(NoisyMinibatchSGD(num_rounds=150, step_size=1.0, clip_norm=1.0)),
        excess(ProxSGD(num_rounds=150, step_size=1.0, clip_norm=1.0)),
    )
    assert accelerated < plain / 5
