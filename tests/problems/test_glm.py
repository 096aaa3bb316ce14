"""Losses and gradients of the generalised linear models."""

import numpy as np
import pytest
import torch
from support.helpers import problems, silos_of
from torch import Tensor

from fedsim.problems.glm import (
    BUILT_IN,
    AbsoluteError,
    GeneralisedLinear,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)

every_problem = pytest.mark.parametrize("name", [name for name in problems(1) if "smoothed" not in name])


def _records(problem: GeneralisedLinear, n: int = 7) -> tuple[Tensor, Tensor]:
    [(x, y)] = silos_of(problem, [n], seed=2)
    return torch.from_numpy(x), torch.from_numpy(y)


def test_every_registered_linear_model_is_tested() -> None:
    linear = {kind for kind in BUILT_IN.values() if issubclass(kind, GeneralisedLinear)}
    assert linear == {type(problem) for problem in problems(2).values()}


@every_problem
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_features_times_coefficient_is_the_gradient_of_the_loss(name: str, scale: float) -> None:
    problem = problems(4)[name]
    x, y = _records(problem)
    w = scale * torch.from_numpy(np.random.default_rng(0).normal(size=problem.dimension))
    w.requires_grad_()
    coefficient = (
        problem.coefficient(problem.scores(x, w), y, 1 / x.norm(dim=-1)).detach().reshape(len(y), -1)
    )
    for i in range(len(y)):
        loss = problem.losses(problem.scores(x[i : i + 1], w), y[i : i + 1]).sum()
        (expected,) = torch.autograd.grad(loss, w)
        mine = torch.outer(x[i], coefficient[i]).reshape(-1)
        # PyTorch's softplus is linear beyond a score of 20, where the sigmoid still lacks 2e-9.
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12 if scale < 30 else 1e-8)


@every_problem
def test_losses_by_their_definition(name: str) -> None:
    problem = problems(4)[name]
    x, y = _records(problem)
    w = np.random.default_rng(0).normal(size=problem.dimension)
    scores = x.numpy() @ w.reshape(4, -1)
    label = y.numpy().astype(int)
    match problem:
        case LogisticRegression():
            expected = np.log1p(np.exp(np.where(label == 1, -scores[:, 0], scores[:, 0])))
        case SoftmaxRegression():
            likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            expected = -np.log(likely[np.arange(len(label)), label])
        case HingeLoss():
            expected = np.maximum(0, 1 - np.where(label == 1, scores[:, 0], -scores[:, 0]))
        case AbsoluteError():
            expected = np.abs(scores[:, 0] - y.numpy())
        case _:
            expected = (scores[:, 0] - y.numpy()) ** 2 / 2
    found = problem.losses(problem.scores(x, torch.from_numpy(w)), y)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@every_problem
def test_losses_are_finite_at_large_scores(name: str) -> None:
    problem = problems(2)[name]
    shape = (2, 3) if problem.num_outputs == 3 else (2,)
    scores = torch.tensor([1e4, -1e4, 0.0, 5e3, 1.0, -5e3], dtype=torch.float64)[: int(np.prod(shape))]
    target = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert problem.losses(scores.reshape(shape), target).isfinite().all()
    assert problem.coefficient(scores.reshape(shape), target, torch.ones_like(target)).isfinite().all()


@every_problem
def test_scores_are_the_same_for_one_point_and_for_a_cohort(name: str) -> None:
    """(d,) for all silos, (silos, d) for each, and a plain table of records."""
    problem = problems(4)[name]
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(5, 7, 4)))
    w = torch.from_numpy(rng.normal(size=(5, problem.dimension)))
    each = problem.scores(x, w)
    for i in range(5):
        torch.testing.assert_close(each[i], problem.scores(x[i], w[i]), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(each[i], problem.scores(x, w[i])[i], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("logistic", [0, 1], [-1, 2, 0.5, np.nan, np.inf]),
        ("softmax", [0, 1, 2], [-1, 3, 0.5, 1.999999, np.nan, np.inf, -np.inf, 1e300]),
        ("linear", [-3.5, 0, 1e12], [np.nan, np.inf, -np.inf]),
        ("hinge", [0, 1], [-1, 2, 0.5, np.nan, np.inf]),
        ("absolute", [-3.5, 0, 1e12], [np.nan, np.inf, -np.inf]),
    ],
)
def test_targets_outside_the_range_are_not_accepted(
    name: str, accepted: list[float], refused: list[float]
) -> None:
    problem = problems(2)[name]
    assert problem.accepts(torch.tensor(accepted, dtype=torch.float64)).all()
    assert not problem.accepts(torch.tensor(refused, dtype=torch.float64)).any()


def test_errors_by_hand() -> None:
    label = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert float(LogisticRegression(1).error(torch.tensor([-1.0, 2.0, -3.0, 0.0]), label)) == 0.25
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    assert float(SoftmaxRegression(1, 2).error(scores, label)) == 0.5
    real = torch.tensor([1.0, 3.0, 5.0, 7.0])
    assert float(LinearRegression(1).error(torch.full((4,), 4.0), real)) == 1.0
    assert float(LinearRegression(1).error(real + 1, real)) == pytest.approx(1 / 5**0.5)
    assert float(HingeLoss(1).error(torch.tensor([-1.0, 2.0, -3.0, 0.0]), label)) == 0.25
    assert float(AbsoluteError(1).error(torch.full((4,), 3.0), real)) == 1.0
    assert float(AbsoluteError(1).error(real - 1, real)) == 0.5
