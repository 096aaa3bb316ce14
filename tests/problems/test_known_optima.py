"""Without noise, the shared algorithms reach optima that solvers of other people's make find."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.linear_model import ElasticNet, QuantileRegressor
from support.helpers import Silo, iterates, silos_of

from fedsim.algorithms.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prox_pl_svrg import ProxPLSVRG
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.problems.composite import Composite
from fedsim.problems.glm import (
    AbsoluteError,
    GeneralisedLinear,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
)
from fedsim.problems.regularisers import GroupLasso, L2Ball, Ridge
from fedsim.protocol.contract import Algorithm

D = 5
SIZES = (40, 40)


def _data(problem: GeneralisedLinear, seed: int = 3) -> tuple[list[Silo], np.ndarray, np.ndarray]:
    """Two silos and their pooled records; equal sizes, so that every record weighs the same."""
    silos = silos_of(problem, SIZES, seed)
    slope = np.array([1.0, -0.5, 0.0, 0.0, 0.3])
    if problem.suits(0):
        silos = [(x, x @ slope + 0.3 * y) for x, y in silos]
    else:
        silos = [(x, (x @ slope + 2 * (y - 0.5) > 0).astype(float)) for x, y in silos]
    return silos, np.concatenate([x for x, _ in silos]), np.concatenate([y for _, y in silos])


def _end(problem: GeneralisedLinear, algorithm: Algorithm, silos: list[Silo]) -> np.ndarray:
    return iterates(algorithm, problem, silos)[-1].numpy()


@pytest.mark.parametrize(("l1", "l2"), [(0.1, 0.0), (0.1, 0.3)], ids=["lasso", "elastic net"])
def test_prox_sgd_reaches_scikit_learns_elastic_net(l1: float, l2: float) -> None:
    problem = LinearRegression(D, composite=Composite(l1, l2))
    silos, x, y = _data(problem)
    known = ElasticNet(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), fit_intercept=False, tol=1e-14, max_iter=10**6)
    known.fit(x, y)
    found = _end(problem, ProxSGD(num_rounds=800, step_size=0.3, clip_norm=1.0), silos)
    np.testing.assert_allclose(found, known.coef_, atol=1e-6)
    assert 0 < (found == 0).sum() < D


GROUPS = ((0, 1), (2, 3))
SPARSE = [
    Composite(l1=0.02, group_lasso=GroupLasso(0.05, GROUPS)),
    Composite(l1=0.02, l2=0.1, group_lasso=GroupLasso(0.05, GROUPS), constraint=L2Ball(0.4)),
    Composite(l1=0.02, group_lasso=GroupLasso(0.05, GROUPS), ridge=Ridge(0.3, (0.5, 0.0, -0.5, 1.0, 0.0))),
]


@pytest.mark.parametrize("f1", SPARSE, ids=["sparse group lasso", "in a ball", "with ridge"])
@pytest.mark.parametrize(
    "algorithm",
    [
        ProxSGD(num_rounds=600, step_size=0.5, clip_norm=1.0),
        pytest.param(
            ProxPLSVRG(
                restarts=100, epochs=1, inner_steps=9, step_size=0.5, clip_norm=1.0, difference_clip=2.0
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["prox_sgd", "prox_pl_svrg"],
)
def test_sparse_group_lasso_logistic_regression_reaches_its_optimum(f1: Composite, algorithm: Any) -> None:
    problem = LogisticRegression(D, composite=f1)
    silos, x, y = _data(problem)
    found = _end(problem, algorithm, silos)
    # The optimality condition of the whole problem: the proximal map's residual, with the gradient by hand.
    gradient = x.T @ (1 / (1 + np.exp(-x @ found)) - y) / len(y)
    again = problem.prox(torch.from_numpy(found - 0.1 * gradient), 0.1).numpy()
    assert np.linalg.norm(again - found) < 1e-8
    # And nothing that a general solver without derivatives finds is better.
    known = optimize.minimize(
        lambda w: _objective(f1, x, y, w),
        np.full(D, 0.01),
        method="COBYLA",
        tol=1e-7,
        constraints=[{"type": "ineq", "fun": lambda w: _radius(f1) - np.linalg.norm(w)}],
    )
    assert _objective(f1, x, y, found) <= known.fun + 1e-8


def _radius(f1: Composite) -> float:
    return f1.constraint.radius if isinstance(f1.constraint, L2Ball) else 1e3


def _objective(f1: Composite, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    lasso, ridge = f1.group_lasso or GroupLasso(0.0, ()), f1.ridge or Ridge(0.0)
    groups = sum(len(g) ** 0.5 * np.linalg.norm(w[list(g)]) for g in lasso.groups)
    pull = ridge.weight / 2 * np.sum((w - ridge.centre) ** 2)
    public = f1.l1 * np.abs(w).sum() + f1.l2 / 2 * (w @ w) + lasso.weight * groups + pull
    return float(np.mean(np.logaddexp(0, x @ w) - y * (x @ w)) + public)


def test_ridge_around_a_centre_reaches_the_normal_equations() -> None:
    """Through `public_gradient` and through `prox`, with an algorithm for each."""
    centre = (1.0, -2.0, 0.5, 0.0, 3.0)
    problem = LinearRegression(D, composite=Composite(ridge=Ridge(0.7, centre)))
    silos, x, y = _data(problem)
    known = np.linalg.solve(x.T @ x / len(y) + 0.7 * np.eye(D), x.T @ y / len(y) + 0.7 * np.array(centre))
    for algorithm in (
        ProxSGD(num_rounds=300, step_size=0.3, clip_norm=1.0),
        AcceleratedMinibatchSGD(num_rounds=3000, step_size=0.1, clip_norm=1.0),
    ):
        np.testing.assert_allclose(_end(problem, algorithm, silos), known, atol=1e-6)


def _smoothed_optimum(
    problem: HingeLoss | AbsoluteError, x: np.ndarray, y: np.ndarray, l2: float
) -> np.ndarray:
    """Zero of the gradient, from the Huber-like formula in NumPy."""
    z, squares = 2 * y - 1, (x**2).sum(1)

    def gradient(w: np.ndarray) -> np.ndarray:
        if isinstance(problem, HingeLoss):
            slope = -z * np.clip((1 - z * (x @ w)) * problem.smoothing / squares, 0, 1)
        else:
            slope = np.clip((x @ w - y) * problem.smoothing / squares, -1, 1)
        return x.T @ slope / len(y) + l2 * w

    found = optimize.root(gradient, np.zeros(D), tol=1e-13)
    assert np.linalg.norm(gradient(found.x)) < 1e-10
    return found.x


@pytest.mark.parametrize("kind", [HingeLoss, AbsoluteError])
def test_smoothed_losses_reach_their_optimum(kind: type[HingeLoss] | type[AbsoluteError]) -> None:
    problem = kind(D, composite=Composite(l2=0.1), smoothing=2.0)
    silos, x, y = _data(problem)
    found = _end(problem, ProxSGD(num_rounds=800, step_size=0.4, clip_norm=1.0), silos)
    np.testing.assert_allclose(found, _smoothed_optimum(problem, x, y, 0.1), atol=1e-6)


def test_smoothing_brings_the_loss_within_its_bound_of_the_least_possible() -> None:
    """F(w_beta) <= min F + L^2 / (2 beta); the minimum of the absolute error by linear programming."""
    problem = AbsoluteError(D, smoothing=20.0)
    silos, x, y = _data(problem)
    known = QuantileRegressor(quantile=0.5, alpha=0, fit_intercept=False, solver="highs").fit(x, y)
    least = np.abs(x @ known.coef_ - y).mean()
    found = _end(problem, ProxSGD(num_rounds=1500, step_size=0.05, clip_norm=1.0), silos)
    reached = np.abs(x @ found - y).mean()
    assert least - 1e-12 <= reached <= least + (x**2).sum(1).mean() / (2 * 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HingeLoss, AbsoluteError])
def test_subgradient_steps_come_near_the_least_loss(kind: type[HingeLoss] | type[AbsoluteError]) -> None:
    """The mean iterate is within D^2 / (2 eta R) + eta L^2 / 2 of the minimum, a linear program's."""
    problem = kind(D, composite=Composite(constraint=L2Ball(3.0)))
    silos, x, y = _data(problem)
    n = len(y)
    # Variables: w, and a bound t on every record's loss.
    if kind is HingeLoss:
        z = 2 * y - 1
        limits, right = np.hstack([-z[:, None] * x, -np.eye(n)]), -np.ones(n)
    else:
        limits = np.vstack([np.hstack([x, -np.eye(n)]), np.hstack([-x, -np.eye(n)])])
        right = np.concatenate([y, -y])
    cost = np.concatenate([np.zeros(D), np.full(n, 1 / n)])
    known = optimize.linprog(cost, limits, right, bounds=[(None, None)] * D + [(0, None)] * n)
    assert np.linalg.norm(known.x[:D]) < 3
    step, rounds = 0.02, 3000
    found = _end(problem, NoisyMinibatchSGD(num_rounds=rounds, step_size=step, clip_norm=1.0), silos)
    reached = float(problem.losses(torch.from_numpy(x @ found), torch.from_numpy(y)).mean())
    bound = 9 / (2 * step * rounds) + step * np.linalg.norm(x, axis=1).mean() ** 2 / 2
    assert known.fun - 1e-9 <= reached <= known.fun + bound
    start = float(problem.losses(torch.zeros(n, dtype=torch.float64), torch.from_numpy(y)).mean())
    assert start > known.fun + bound
