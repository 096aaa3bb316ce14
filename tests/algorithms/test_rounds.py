"""Communication rounds that algorithms need, counted against each other without DP noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import optimize
from support.helpers import drive, open_gate, plan_of, public_of, silos_of

from fedsim.algorithms.multi_stage_accelerated_minibatch_sgd import MultiStageAcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_pl_svrg import ProxPLSVRG
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.algorithms.prox_spider import ProxSPIDER
from fedsim.problems.composite import Composite
from fedsim.problems.glm import GeneralisedLinear, LinearRegression, LogisticRegression
from fedsim.protocol.batch import Subsample
from fedsim.protocol.contract import Algorithm
from server.participation import schedule

Data = Sequence[tuple[np.ndarray, np.ndarray]]
SIZES = (40, 40, 40)
L1 = 0.02
BATCH = Subsample(0.5)


def distances(
    algorithm: Algorithm,
    problem: GeneralisedLinear,
    data: Data,
    distance: Callable[[np.ndarray], float],
) -> np.ndarray:
    """Of what the server would return before each round, and at the end, from the optimum."""
    sizes = [len(y) for _, y in data]
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    rounds = schedule(len(data), None, [False] * len(plan_of(algorithm, problem, sizes).rounds), 0, 0)
    return np.array(
        [distance(p.answer.numpy()) for p in drive(gate, algorithm, problem, public_of(sizes), rounds)]
    )


@pytest.fixture(scope="module")
def sparse() -> tuple[GeneralisedLinear, Data, np.ndarray]:
    """l1-logistic regression with its optimum, by L-BFGS-B on w = u - v with u, v >= 0."""
    problem = LogisticRegression(4, composite=Composite(l1=L1))
    data = silos_of(problem, SIZES, seed=3)
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
    sparse: tuple[GeneralisedLinear, Data, np.ndarray],
) -> None:
    """Rounds until the server's model is within 1e-6 of the optimum, all silos, no DP noise.

    On full batches all three take the same steps, so what differs is what minibatches do to them. Every
    gradient of prox-SGD, and every gradient difference of the other two, is over a random half of a
    silo's records; once in ten rounds the other two also ask for a gradient over all records, and that
    round is counted too. Their steps have vanishing variance; prox-SGD's has a floor that falls only
    as the square root of its step size, and is given four step sizes and ten times as many rounds.
    """
    problem, data, optimum = sparse

    def path(algorithm: Algorithm) -> np.ndarray:
        return distances(algorithm, problem, data, lambda w: float(np.linalg.norm(w - optimum)))

    svrg = ProxPLSVRG(
        restarts=15,
        epochs=1,
        inner_steps=9,
        step_size=1.0,
        clip_norm=1.0,
        difference_clip=2.0,
        batch=BATCH,
    )
    spider = ProxSPIDER(num_rounds=150, period=10, step_size=1.0, clip_norm=1.0, difference_batch=BATCH)
    rounds = []
    for along in (path(svrg), path(spider)):
        assert along[-1] <= 1e-6
        rounds.append(int(np.argmax(along <= 1e-6)))
    assert max(rounds) <= 150
    for step_size in (1.0, 0.3, 0.1, 0.03):
        along = path(ProxSGD(num_rounds=800, step_size=step_size, clip_norm=1.0, batch=BATCH))
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
        along = distances(algorithm, problem, data, lambda w: float((scale**2 * (w - truth) ** 2).sum() / 2))
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
