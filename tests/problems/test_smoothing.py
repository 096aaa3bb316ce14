"""Moreau-smoothed losses against the envelope as a general solver finds it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from fedsim.problems.glm import AbsoluteError, HingeLoss, KinkedLoss

D = 3
KINKED = {"hinge": HingeLoss(D), "absolute": AbsoluteError(D)}
every_loss = pytest.mark.parametrize("name", KINKED)
every_beta = pytest.mark.parametrize("beta", [0.05, 1.0, 30.0])


def _record(name: str, seed: int) -> tuple[np.ndarray, float]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=D) * rng.choice([0.3, 1, 4]), float(
        rng.normal() if name == "absolute" else seed % 2
    )


def _loss(name: str, x: np.ndarray, y: float, w: np.ndarray) -> float:
    """By definition, apart from the code under test."""
    return max(0.0, 1 - (2 * y - 1) * float(x @ w)) if name == "hinge" else abs(float(x @ w) - y)


def _envelope(name: str, x: np.ndarray, y: float, w: np.ndarray, beta: float) -> float:
    """min_v f(v) + beta/2 |w - v|^2 by SLSQP, over v and a bound on the loss."""
    z = 2 * y - 1
    if name == "hinge":
        limits = [lambda u: u[-1], lambda u: u[-1] - 1 + z * (x @ u[:-1])]
    else:
        limits = [lambda u: u[-1] - x @ u[:-1] + y, lambda u: u[-1] + x @ u[:-1] - y]
    found = optimize.minimize(
        lambda u: u[-1] + beta / 2 * ((w - u[:-1]) @ (w - u[:-1])),
        np.append(w, _loss(name, x, y, w) + 0.1),
        constraints=[{"type": "ineq", "fun": limit} for limit in limits],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(found.fun)


def _gradient(problem: KinkedLoss, x: np.ndarray, y: float, w: np.ndarray) -> np.ndarray:
    row, norm = torch.from_numpy(x).reshape(1, -1), np.linalg.norm(x)
    inverse = torch.tensor([1 / norm if norm else 0.0], dtype=torch.float64)
    target = torch.tensor([y], dtype=torch.float64)
    coefficient = problem.coefficient(problem.scores(row, torch.from_numpy(w)), target, inverse)
    return float(coefficient) * x


def _points(seed: int, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(100 + seed).normal(size=D) * scale


@every_loss
@every_beta
@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_is_that_of_the_numerically_minimised_envelope(
    name: str, beta: float, seed: int
) -> None:
    problem = replace(KINKED[name], smoothing=beta)
    x, y = _record(name, seed)
    w, h = _points(seed), 1e-3
    slope = [
        (_envelope(name, x, y, w + h * e, beta) - _envelope(name, x, y, w - h * e, beta)) / (2 * h)
        for e in np.eye(D)
    ]
    # Where the curvature jumps within h, the difference quotient is off by at most beta h.
    np.testing.assert_allclose(_gradient(problem, x, y, w), slope, atol=beta * h + 2e-4)


@every_loss
@every_beta
@pytest.mark.parametrize("seed", range(6))
def test_the_envelope_lies_between_the_loss_and_l_squared_over_two_beta_below(
    name: str, beta: float, seed: int
) -> None:
    """And the lower bound is attained: on the linear part of a loss the gap is L^2 / (2 beta)."""
    x, y = _record(name, seed)
    gap = float(x @ x) / (2 * beta)
    for w in (_points(seed), _points(seed + 50, 0.1)):
        smoothed = _envelope(name, x, y, w, beta)
        assert smoothed - 1e-7 <= _loss(name, x, y, w) <= smoothed + gap + 1e-7
    far = (1e4 if name == "absolute" else -1e4 * (2 * y - 1)) * x / float(x @ x)
    low, high = (_antiderivative(replace(KINKED[name], smoothing=beta), x, y, w) for w in (0 * far, far))
    rise = _loss(name, x, y, far) - _envelope(name, x, y, 0 * far, beta)
    assert high - low == pytest.approx(rise - gap, abs=1e-5 * (1 + gap))


def _antiderivative(problem: KinkedLoss, x: np.ndarray, y: float, w: np.ndarray) -> float:
    """The integral of the gradient along the line from 0 to w, split where the slope has its corners."""
    corners = []
    if w.any():
        step = problem.smoothing and float(x @ x) / problem.smoothing
        kink = y if isinstance(problem, AbsoluteError) else 2 * y - 1
        corners = [t for t in ((kink + k * step) / float(x @ w) for k in (-1, 0, 1)) if 0 < t < 1]
    edges = [0.0, *sorted(corners), 1.0]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    # The slope is linear between corners, so its mean there is its middle value.
    pieces = [float(_gradient(problem, x, y, m * w) @ w) for m in middles]
    return float(np.dot(pieces, np.diff(edges)))


@every_loss
@every_beta
def test_the_envelope_is_l_lipschitz_beta_smooth_and_convex_and_attains_both(name: str, beta: float) -> None:
    """L, not 2 L: the longest gradient found has length L = |x|, and the steepest curvature is beta."""
    problem = replace(KINKED[name], smoothing=beta)
    x, y = _record(name, 3)
    length, rng = float(np.linalg.norm(x)), np.random.default_rng(1)
    kink = (y if name == "absolute" else 2 * y - 1) * x / float(x @ x)
    norms, curvatures = [], []
    for scale in np.repeat([0.01, 1.0, 100.0], 200):
        # Around the kink, and as wide as the quadratic part, which is L / beta.
        w, v = kink + scale * length / beta * rng.normal(size=(2, D))
        change = _gradient(problem, x, y, w) - _gradient(problem, x, y, v)
        assert change @ (w - v) >= -1e-12
        norms.append(np.linalg.norm(_gradient(problem, x, y, w)))
        along = (w - v) @ x / length
        curvatures.append(np.linalg.norm(change) / abs(along))
        assert np.linalg.norm(change) <= beta * np.linalg.norm(w - v) * (1 + 1e-9)
    assert max(norms) == pytest.approx(length, rel=1e-12)
    assert max(curvatures) == pytest.approx(beta, rel=1e-6)


@every_loss
def test_at_the_kink_the_subgradient_is_zero_and_around_it_that_of_the_loss(name: str) -> None:
    problem = KINKED[name]
    target = torch.ones(3, dtype=torch.float64)
    scores = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    found = problem.coefficient(scores, target, torch.ones_like(target))
    assert found.tolist() == ([-1.0, 0.0, 0.0] if name == "hinge" else [-1.0, 0.0, 1.0])
    negative = HingeLoss(D).coefficient(-scores, 0 * target, torch.ones_like(target))
    assert negative.tolist() == [1.0, 0.0, 0.0]


@every_loss
@pytest.mark.parametrize("length", [0.0, 1e-200, 1e-20, 1e20])
def test_rows_of_any_length_have_a_finite_coefficient(name: str, length: float) -> None:
    """A zero row has inverse norm 0, and |x|^2 may underflow or overflow where 1 / |x| does not."""
    problem = replace(KINKED[name], smoothing=2.0)
    inverse = torch.tensor([1 / length if length else 0.0], dtype=torch.float64)
    for score, y in ((0.0, 0.0), (0.0, 1.0), (length, 1.0)):
        scores, target = torch.tensor([[score], [y]], dtype=torch.float64)
        found = problem.coefficient(scores, target, inverse)
        assert found.isfinite().all()
        assert float(found.abs()) <= 1


@every_loss
def test_reported_losses_and_errors_are_the_original_ones(name: str) -> None:
    rng = np.random.default_rng(0)
    scores, target = torch.from_numpy(rng.normal(size=9)), torch.from_numpy(rng.integers(2, size=9) * 1.0)
    plain, smoothed = KINKED[name], replace(KINKED[name], smoothing=0.3)
    assert torch.equal(plain.losses(scores, target), smoothed.losses(scores, target))
    assert torch.equal(plain.error(scores, target), smoothed.error(scores, target))
    assert plain != smoothed


def test_the_smoothed_coefficient_tends_to_the_subgradient() -> None:
    scores: Tensor = torch.tensor([-1.0, 0.4, 2.0], dtype=torch.float64)
    target, inverse = torch.ones_like(scores), torch.ones_like(scores)
    for problem in KINKED.values():
        steep = replace(problem, smoothing=1e8).coefficient(scores, target, inverse)
        assert torch.equal(steep, problem.coefficient(scores, target, inverse))
