"""A silo's model at home: its parts by autograd and by refits, what it comes to at the ends, its optimism."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.problems.at_home import Federation, _Fit, at_home, linear, unfit
from fedsim.problems.composite import Composite
from fedsim.problems.glm import (
    GeneralisedLinear,
    HingeLoss,
    LinearRegression,
    LogisticRegression,
    SoftmaxRegression,
)
from fedsim.problems.minimise import minimiser
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp

P = 6  # features, the constant one included
PROBLEMS = [LogisticRegression(P), SoftmaxRegression(P, 3), LinearRegression(P)]
KINDS = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
EVERY = torch.float64


def drawn(problem: GeneralisedLinear, true: Tensor, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Records whose targets follow the model `true`, (d,)."""
    rng = np.random.default_rng(seed)
    x = torch.tensor(np.hstack([rng.uniform(-1, 1, (n, P - 1)), np.ones((n, 1))]))
    scores = problem.scores(x, true)
    chances = problem.probabilities(scores)
    if chances is None:
        return x, scores + torch.tensor(rng.normal(0, 0.5, n))
    return x, (torch.tensor(rng.random(n))[:, None] > chances.cumsum(-1)).sum(-1).double()


def truth(problem: GeneralisedLinear, seed: int) -> Tensor:
    return torch.tensor(np.random.default_rng([seed, 1]).normal(0, 1.2, problem.dimension))


def loss(problem: GeneralisedLinear, w: Tensor, records: tuple[Tensor, Tensor]) -> float:
    return float(problem.losses(problem.scores(records[0], w), records[1]).mean())


def optimum(problem: GeneralisedLinear, records: tuple[Tensor, Tensor]) -> Tensor:
    slight = torch.full((problem.dimension,), 1e-6, dtype=EVERY)
    return minimiser(problem, [records], [1.0], slight)


def pulled(problem: GeneralisedLinear, records: tuple[Tensor, Tensor]) -> _Fit:
    return _Fit(problem, *records, torch.arange(len(records[1])))


@KINDS
def test_each_fit_is_where_automatic_differentiation_finds_no_slope(problem):
    true = truth(problem, 0)
    fit = pulled(problem, drawn(problem, true, 80, 0))
    kept = fit.folds[0][0]
    point = fit.pulled(true, 3.0, 0.1, kept).requires_grad_()
    pull = 3.0 * fit.spread
    pull[-1] = 0.1
    total = problem.losses(problem.scores(fit.x[kept], point), fit.y[kept]).sum()
    total = total + pull.flatten() @ (point - true).square() / 2
    (slope,) = torch.autograd.grad(total, point)
    assert float(slope.norm()) < 1e-4
    assert float((point.detach() - true).norm()) > 0.1
    again = fit.recalibrated(3 * true, kept).detach()  # three times too steep: slope and intercept move back
    assert loss(problem, again, (fit.x[kept], fit.y[kept])) < loss(
        problem, 3 * true, (fit.x[kept], fit.y[kept])
    )


@pytest.mark.parametrize("l2", [0.0, 0.3])
@KINDS
def test_a_step_of_influence_is_a_refit_without_the_fold(problem, l2):
    true, problem = truth(problem, 1), replace(problem, composite=Composite(l2=l2))
    own, others = drawn(problem, true, 300, 1), drawn(problem, true, 900, 2)
    fit = pulled(problem, own)
    every = torch.cat([own[0], others[0]]), torch.cat([own[1], others[1]])
    whole = optimum(problem, every)
    public = Federation(whole, 1200, 0.0, took_part=True)
    for mine, out in fit.folds:
        kept = torch.cat([mine, torch.ones(900, dtype=torch.bool)])
        refit = optimum(problem, (every[0][kept], every[1][kept]))
        step, moved = fit.without(public, out) - whole, refit - whole
        if problem.num_outputs > 1:  # a constant in all columns changes no score
            step, moved = (
                each.view(P, -1) - each.view(P, -1).mean(1, keepdim=True) for each in (step, moved)
            )
        assert float((step - moved).norm()) < 0.2 * float(moved.norm())
    assert fit.without(public._replace(took_part=False), fit.folds[0][1]) is whole


@KINDS
def test_optimism_is_corrected(problem):
    """A silo of a tenth of the records: what the federation's model loses on them, beside a test's loss. The
    true model's loss on both is taken off, so that few seeds show 1 %.
    """

    corrected, naive, size = [], [], []
    for seed in range(60):
        true = truth(problem, seed)
        own, others = drawn(problem, true, 60, 3 * seed), drawn(problem, true, 540, 3 * seed + 1)
        test = drawn(problem, true, 4000, 3 * seed + 2)
        w = optimum(problem, (torch.cat([own[0], others[0]]), torch.cat([own[1], others[1]])))
        size.append(loss(problem, w, test))
        there, fit = size[-1] - loss(problem, true, test), pulled(problem, own)
        for took_part, found in ((True, corrected), (False, naive)):
            public = Federation(w, 600, 0.0, took_part)
            scores = fit.unseen([fit.without(public, out) for _, out in fit.folds])
            here = float(problem.losses(scores, own[1]).mean())
            found.append(here - loss(problem, true, own) - there)
    assert abs(np.mean(corrected)) < 0.01 * np.mean(size)
    assert np.mean(naive) < -0.01 * np.mean(size)


@KINDS
def test_infinite_noise_leaves_the_silo_alone(problem):
    true = truth(problem, 4)
    own, test = drawn(problem, true, 300, 5), drawn(problem, true, 4000, 6)
    noise = torch.tensor(np.random.default_rng(7).normal(0, 1e3, problem.dimension))
    found = at_home(problem, *own, Federation(noise, 3000, float("inf"), took_part=True))
    alone = found.parts[0]
    assert alone.kind == "alone"
    assert found.parts[1].weight < 1e-3
    assert alone.weight > 0.5
    assert loss(problem, found.w, test) == pytest.approx(loss(problem, optimum(problem, own), test), rel=0.03)


@KINDS
def test_one_silo_without_noise_keeps_its_own_fit(problem):
    true = truth(problem, 8)
    own, test = drawn(problem, true, 300, 9), drawn(problem, true, 4000, 10)
    fit = optimum(problem, own)
    found = at_home(problem, *own, Federation(fit, 300, 0.0, took_part=True))
    assert loss(problem, found.w, test) == pytest.approx(loss(problem, fit, test), rel=0.02)


@KINDS
def test_a_small_silo_takes_a_good_model_and_a_strange_one_keeps_its_own(problem):
    true = truth(problem, 11)
    own, test = drawn(problem, true, 60, 12), drawn(problem, true, 4000, 13)
    good = at_home(problem, *own, Federation(true, 6000, 0.0, took_part=False))
    alone = optimum(problem, own)
    assert loss(problem, good.w, test) < 0.5 * (loss(problem, alone, test) + loss(problem, true, test))
    strange = at_home(problem, *own, Federation(-true, 6000, 0.0, took_part=False))
    assert strange.parts[1].weight < 0.1
    assert loss(problem, strange.w, test) < 1.1 * loss(problem, alone, test)
    assert sum(part.weight for part in good.parts) == pytest.approx(1)
    unseen = good.parts[1]  # the true model's own losses
    losses = problem.losses(problem.scores(own[0], true), own[1])
    assert (unseen.loss, unseen.error) == pytest.approx((float(losses.mean()), float(losses.std()) / 60**0.5))


def test_records_of_one_person_are_in_one_fold_and_count_as_one():
    problem = LogisticRegression(P)
    true = truth(problem, 14)
    x, y = (each.repeat_interleave(4, 0) for each in drawn(problem, true, 40, 15))
    owners = torch.arange(40).repeat_interleave(4)
    fit = _Fit(problem, x, y, owners)
    assert len(fit.folds) == 5
    assert all(len(out[owners == person].unique()) == 1 for person in range(40) for _, out in fit.folds)
    public = Federation(true, 4000, 0.0, took_part=False)
    once = at_home(problem, x[::4], y[::4], public)
    whole = at_home(problem, x, y, public, owners)
    assert whole.parts[1].error == pytest.approx(once.parts[1].error)
    scores = torch.stack([problem.scores(x, share * true) for share in (0.0, 1.0, 0.5)])
    losses = torch.stack([problem.losses(each, y).mean() for each in scores])
    weights = fit._weights(scores, losses, public._replace(records=16_000))
    single = pulled(problem, (x[::4], y[::4]))._weights(scores[:, ::4], losses, public)
    torch.testing.assert_close(weights, single)  # of 16,000 records are as many persons as of 4,000 apart


def test_a_model_without_any_loss_is_fitted():
    problem = LinearRegression(P)
    x, _ = drawn(problem, truth(problem, 16), 40, 17)
    found = at_home(problem, x, torch.zeros(40), Federation(torch.zeros(P), 400, 0.1, took_part=True))
    assert float(found.w.norm()) < 1e-6
    assert all(torch.tensor(part[1:]).isfinite().all() for part in found.parts)


def test_what_has_no_fit_is_said():
    problem, y = LogisticRegression(P), torch.tensor([0.0, 1.0] * 8)
    assert unfit(problem, y) is None
    assert unfit(problem, y[:14]) == "14 records, and 15 are needed"
    assert unfit(problem, y, torch.arange(16) // 2) == "8 persons, and 15 are needed"
    assert unfit(problem, y * 0) == "records of one class alone"
    assert unfit(LinearRegression(P), y * 0) is None
    with pytest.raises(InputError, match="HingeLoss"):
        linear(HingeLoss(P), torch.ones(2, P), torch.zeros(P))
    network = NeuralNetwork(P, 2, model=Imported("support.network_modules:Wide"))
    with pytest.raises(InputError, match="'module': a fit at home is for"):
        linear(network, torch.ones(2, P), network.start(0))


@pytest.mark.parametrize(
    ("model", "features", "classes"), [(Mlp((5,)), P, 3), (Mlp((4, 3)), P, 0), (Lenet((1, 16, 16)), 256, 3)]
)
def test_of_a_network_the_last_layer_is_fitted(model, features, classes):
    problem = NeuralNetwork(features, classes or 1, Composite(l2=0.2), model)
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.uniform(-1, 1, (60, features)))
    y = torch.tensor(rng.integers(0, classes, 60) if classes else rng.normal(size=60), dtype=EVERY)
    w = problem.start(0).double()
    head, made, own, back = linear(problem, x, w)
    assert torch.allclose(head.scores(made, own), problem.scores(x, w))
    assert head.composite.quadratic == 0.2
    assert torch.equal(back(own), w)
    home = at_home(problem, x, y, Federation(w, 600, 0.1, took_part=True)).w
    changed = (home != w).nonzero().flatten()
    assert int(changed.min()) >= problem.dimension - head.dimension
    assert float(problem.losses(problem.scores(x, home), y).mean()) < float(
        problem.losses(problem.scores(x, w), y).mean()
    )
