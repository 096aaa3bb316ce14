"""Variance-reduced and accelerated algorithms without noise: their steps, and the rounds that they need."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from support.helpers import FALSE_ALARM, Silo, iterates, public_of, silos_of
from support.refusals import refused
from torch import Tensor

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.multi_stage_accelerated_minibatch_sgd import MultiStageAcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_pl_svrg import ProxPLSVRG
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.algorithms.prox_svrg import ProxSVRG
from fedsim.common.seeds import server_rng
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression
from fedsim.protocol.batch import Subsample
from fedsim.protocol.contract import Algorithm

SIZES = (20, 30, 50)
PROBLEM = LogisticRegression(4, 1, Composite(l1=0.02, l2=0.01))
DATA = silos_of(PROBLEM, SIZES, seed=3)


def path(algorithm: Algorithm) -> list[Tensor]:
    return iterates(algorithm, PROBLEM, DATA)


REFERENCE = path(ProxSGD(num_rounds=12, step_size=0.3, clip_norm=1.0))


@pytest.mark.parametrize("period", [1, 3, 20])
def test_spiders_corrections_add_up_to_the_gradient(period: int) -> None:
    found = path(ProxSPIDER(num_rounds=12, period=period, step_size=0.3, clip_norm=1.0))
    for mine, expected in zip(found, REFERENCE, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_svrgs_corrected_anchor_gradient_is_the_gradient() -> None:
    svrg = ProxSVRG(epochs=3, inner_steps=4, step_size=0.3, clip_norm=1.0, difference_clip=2.0)
    steps = [answer for r, answer in enumerate(path(svrg)[:-1]) if r % 5 > 0]
    for mine, expected in zip(steps, REFERENCE, strict=False):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_svrg_returns_an_inner_iterate_drawn_from_the_public_seed() -> None:
    svrg = ProxSVRG(epochs=2, inner_steps=3, step_size=0.3, clip_norm=1.0, difference_clip=2.0)
    returned = path(svrg)[-1]
    assert any(torch.allclose(returned, w, rtol=1e-10) for w in REFERENCE[:6])
    assert torch.equal(path(svrg)[-1], returned)


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
    with refused("inner_steps", 1, "2"):
        ProxPLSVRG(restarts=5, epochs=1, inner_steps=1, step_size=1.0, clip_norm=1.0, difference_clip=2.0)


def test_pl_svrg_restarts_from_where_the_run_before_ended() -> None:
    inner = {"epochs": 1, "inner_steps": 4, "step_size": 0.3, "clip_norm": 1.0, "difference_clip": 2.0}
    answers = path(ProxPLSVRG(restarts=3, **inner))
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
    spider.silo(PROBLEM, {"w": moved, "previous": w}, ask, {})
    assert float(asked[0].clip) == pytest.approx(expected)


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


L1 = 0.02
BATCH = Subsample(0.5)


@pytest.fixture(scope="module")
def sparse() -> tuple[GeneralisedLinear, list[Silo], np.ndarray]:
    """l1-logistic regression with its optimum, by L-BFGS-B on w = u - v with u, v >= 0."""
    problem = LogisticRegression(4, composite=Composite(l1=L1))
    data = silos_of(problem, (40, 40, 40), seed=3)
    x, y = np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data])

    def split(uv: np.ndarray) -> tuple[float, np.ndarray]:
        scores = x @ (uv[:4] - uv[4:])
        gradient = x.T @ (1 / (1 + np.exp(-scores)) - y) / len(y)
        value = np.mean(np.logaddexp(0, scores) - y * scores) + L1 * uv.sum()
        return value, np.concatenate([gradient, -gradient]) + L1

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 10_000}
    found = optimize.minimize(
        split, np.zeros(8), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 8, options=options
    ).x
    w = found[:4] - found[4:]
    gradient = split(found)[1][:4] - L1
    on = np.abs(w) > 1e-6
    assert 0 < on.sum() < 4
    np.testing.assert_allclose(gradient[on], -L1 * np.sign(w[on]), atol=1e-8)
    assert (np.abs(gradient[~on]) <= L1).all()
    return problem, data, np.where(on, w, 0.0)


@pytest.mark.slow
def test_variance_reduced_methods_reach_an_l1_logistic_optimum_that_prox_sgd_does_not(
    sparse: tuple[GeneralisedLinear, list[Silo], np.ndarray],
) -> None:
    """Rounds until the server's model is within 1e-6 of the optimum, all silos, no DP noise.

    On full batches all three take the same steps, so what differs is what minibatches do to them. Every
    gradient of prox-SGD, and every gradient difference of the other two, is over a random half of a
    silo's records; once in ten rounds the other two also ask for a gradient over all records, and that
    round is counted too. Their steps have vanishing variance; prox-SGD's has a floor that falls only
    as the square root of its step size, and is given four step sizes and ten times as many rounds.
    """
    problem, data, optimum = sparse

    def distances(algorithm: Algorithm) -> np.ndarray:
        return np.array([np.linalg.norm(w.numpy() - optimum) for w in iterates(algorithm, problem, data)])

    svrg = ProxPLSVRG(
        restarts=15, epochs=1, inner_steps=9, step_size=1.0, clip_norm=1.0, difference_clip=2.0, batch=BATCH
    )
    spider = ProxSPIDER(num_rounds=150, period=10, step_size=1.0, clip_norm=1.0, difference_batch=BATCH)
    rounds = []
    for along in (distances(svrg), distances(spider)):
        assert along[-1] <= 1e-6
        rounds.append(int(np.argmax(along <= 1e-6)))
    assert max(rounds) <= 150
    for step_size in (1.0, 0.3, 0.1, 0.03):
        along = distances(ProxSGD(num_rounds=800, step_size=step_size, clip_norm=1.0, batch=BATCH))
        assert along.min() > 1e-5


@pytest.mark.slow
def test_multi_stage_acceleration_needs_a_fraction_of_plain_rounds() -> None:
    """Condition number 1,000, full batches: rounds until the excess risk is a ten-thousandth of the first.

    A quarter of the rounds of minibatch SGD with the theorem's largest step 1 / beta, and less than half
    with a step of 1.9 / beta, near the largest that converges at all.
    """
    scale = np.array([1.0, 0.3, 0.1, 1000**-0.5])
    x = np.diag(scale).repeat(4, 0) * 2  # the Hessian is diag(scale^2)
    truth = np.array([1.0, -1.0, 1.0, 10.0])
    problem, data = LinearRegression(4), [(x, x @ truth)] * 2
    first = float((scale**2 * truth**2).sum() / 2)

    def needed(algorithm: Algorithm) -> int:
        found = np.array([w.numpy() for w in iterates(algorithm, problem, data)])
        along = (scale**2 * (found - truth) ** 2).sum(axis=1) / 2
        assert along[-1] <= 1e-4 * first
        return int(np.argmax(along <= 1e-4 * first))

    multi = MultiStageAcceleratedMinibatchSGD(
        num_rounds=1_100, smoothness=1.0, strong_convexity=1e-3, initial_excess=first, clip_norm=1.0, noise=0
    )
    rounds, plain = needed(multi), {}
    for step_size in (1.0, 1.9):
        plain[step_size] = needed(
            NoisyMinibatchSGD(num_rounds=4_000, step_size=step_size, clip_norm=1.0, last_iterate=True)
        )
    assert rounds * 4 < plain[1.0]
    assert rounds * 2 < plain[1.9]
