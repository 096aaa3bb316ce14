"""Whitened Newton steps: their price, metric, curvature and noise, and the optimum."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from support.helpers import DELTA, drive, open_gate, public_of, silos_of
from support.scenarios import once

import fedsim
from fedsim.algorithms.whitened_newton import Course, WhitenedNewton, recalibrated, whitening
from fedsim.common.errors import InputError, PluginError
from fedsim.measure.baselines import fit
from fedsim.privacy.registry import NONE
from fedsim.problems.composite import Composite
from fedsim.problems.glm import AbsoluteError, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.regularisers import L2Ball
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import LIMITS
from fedsim.scenario.load import parse
from fedsim.simulation.host import DirectLink
from fedsim.testing import AlgorithmTests, Example
from fedsim.testing.federations import all_take_part
from server.aggregate import weighted
from server.loop import run

D = 5
SIZES = (300, 500)
PROBLEMS = [LogisticRegression(D), LinearRegression(D), SoftmaxRegression(D, 3)]


def long(**numbers):
    return WhitenedNewton(
        **{"num_rounds": 60, "moment_clip": 200.0, "steps": 30.0, "clip_factor": 100.0} | numbers
    )


def learnable(problem, sizes, seed=1):
    """Records whose target follows from their features, of unlike scales and correlated."""
    rng, data = np.random.default_rng(seed), []
    mix = rng.normal(size=(D - 1, D - 1)) * np.array([0.05, 0.2, 0.6, 1.0])
    w = np.random.default_rng(5).normal(size=(D, max(2, problem.num_outputs)))
    for n in sizes:
        x = np.hstack([rng.normal(size=(n, D - 1)) @ mix + 0.3, np.ones((n, 1))])
        scores = x @ w
        if isinstance(problem, LinearRegression):
            y = scores[:, 0] + rng.normal(size=n)
        else:
            y = (scores + rng.gumbel(size=scores.shape)).argmax(1).astype(float)
        data.append((x, y))
    return data


def model_of(problem, data, algorithm, **options):
    gate = open_gate(data, problem, algorithm, **options)
    sizes = [len(y) for _, y in data]
    public = public_of(sizes)
    return drive(gate, algorithm, problem, public, all_take_part(gate.gate.plan, len(data)))[-1].answer


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("diagonal", [False, True])
def test_without_noise_and_clip_it_is_at_the_optimum(problem, diagonal):
    data = learnable(problem, SIZES)
    rounds = {"num_rounds": 400, "steps": 200.0} if diagonal or problem.num_outputs > 1 else {}
    algorithm = long(diagonal=diagonal, **rounds)
    model = model_of(problem, data, algorithm, mechanism=NONE, epsilon=math.inf)
    pairs = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in data]
    best = fit(problem, pairs, [n / sum(SIZES) for n in SIZES], True).w
    x, y = (torch.as_tensor(np.concatenate(each)) for each in zip(*data, strict=True))

    def loss(w):
        return float(problem.losses(problem.scores(x, w), y).mean())

    far = loss(torch.zeros_like(best)) - loss(best)
    assert loss(model) - loss(best) < (0.03 if diagonal else 0.003) * far


@pytest.mark.parametrize(
    ("problem", "numbers", "shares"),
    [
        (LogisticRegression(D), {}, (0.15, 0.02)),
        (LogisticRegression(D), {"moment_share": 0.3, "recalibration_share": 0.05}, (0.3, 0.02, 0.05)),
        (LinearRegression(D), {}, (0.15,)),
    ],
    ids=["classes", "recalibrated", "number"],
)
def test_releases_have_their_shares_and_cost_the_budget(problem, numbers, shares):
    algorithm = WhitenedNewton(7, 2.0, **numbers)
    data = silos_of(problem, (400,))
    gate = open_gate(data, problem, algorithm, epsilon=2.0).gate
    z = gate.admitted[0].noise_multiplier
    ratios = [query.noise_ratio for asks in gate.plan.rounds for ask in asks for query in ask.queries]
    assert len(ratios) == 7 + len(shares)
    squares = [1 / (z * ratio) ** 2 for ratio in ratios]
    left = 1 - algorithm.moment_share - algorithm.class_share - algorithm.recalibration_share
    total = 7 / z**2 / left  # of the shares that were named; a number has no classes
    special = [
        squares[0],
        *([squares[1]] if len(shares) > 1 else []),
        *(squares[-1:] if len(shares) > 2 else []),
    ]
    assert [each / total for each in special] == pytest.approx(shares)
    mu = math.sqrt(sum(squares))

    def delta(eps):  # Dong, Roth and Su 2022, Corollary 2.13
        return norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * norm.cdf(-eps / mu - mu / 2)

    assert delta(2.0) == pytest.approx(DELTA, rel=1e-3)
    assert brentq(lambda eps: delta(eps) - DELTA, 0.1, 10) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("diagonal", [False, True])
def test_whitened_records_have_their_covariance_and_norm(diagonal):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 4)) * np.array([1.0, 0.5, 0.3, 0.2]) + 0.2
    if not diagonal:
        x = x @ rng.normal(size=(4, 4)) / 2
    x = torch.as_tensor(np.hstack([x, np.ones((len(x), 1))]))
    T, typical = whitening(x.T @ x / len(x), 1e-6, diagonal)
    made = x @ T.T
    inner = torch.eye(4).double()
    assert torch.cov(made[:, :-1].T).numpy() == pytest.approx(inner.numpy(), abs=0.02)
    assert made[:, -1].numpy() == pytest.approx(1.0)
    assert float(made.square().sum(1).mean().sqrt()) == pytest.approx(typical, rel=0.02)


def test_the_typical_norm_holds_where_noise_raises_eigenvalues():
    rng = np.random.default_rng(1)
    scales = np.geomspace(1.0, 0.01, 12)
    x = torch.as_tensor(np.hstack([rng.normal(size=(20_000, 12)) * scales, np.ones((20_000, 1))]))
    noise = 0.02
    moment = x.T @ x / len(x)
    error = torch.as_tensor(rng.normal(size=moment.shape)) * noise / math.sqrt(2)
    noisy = moment + (error + error.T) / math.sqrt(2)
    noisy[-1, -1] = 1.0
    T, typical = whitening(noisy, noise, False)
    true = float((x @ T.T).square().sum(1).mean().sqrt())
    assert true < 0.75 * math.sqrt(13)  # several were raised
    assert typical == pytest.approx(true, rel=0.12)


@pytest.mark.parametrize(("strength", "centre"), [(0.5, 0.0), (1.5, -2.5), (2.5, 1.0)])
def test_the_curvature_from_the_model_is_that_of_the_records(strength, centre):
    rng = np.random.default_rng(3)
    w = rng.normal(size=9)
    w = w * strength / np.linalg.norm(w)
    scores = torch.as_tensor(rng.normal(size=(50_000, 9)) @ w + centre)
    sigma = torch.sigmoid(scores)
    course = Course(WhitenedNewton(10, 2.0), (10, 1), torch.tensor([0.5, 0.5]).double(), 0.0)
    course.mean = torch.as_tensor(np.append(w, centre))[:, None]
    assert course.curvature == pytest.approx(float((sigma * (1 - sigma)).mean()), rel=0.02)
    course.mean[:-1] *= 0.5
    wrong = abs(course.curvature / float((sigma * (1 - sigma)).mean()) - 1)
    assert wrong > 0.02


def test_the_noise_in_the_mean_is_what_it_says():
    numbers, p, sd = WhitenedNewton(12, 2.0, steps=5.0), 6, 0.03
    rng, found = np.random.default_rng(0), []
    for _ in range(4000):
        course = Course(numbers, (p, 1), None, sd)
        for _ in range(12):
            course.step(course.W + sd * torch.as_tensor(rng.normal(size=(p, 1))))  # least squares, optimum 0
        found.append(course.mean[:-1, 0].numpy())
    measured = float(np.var(found))
    assert measured == pytest.approx(course.variance, rel=0.06)
    assert measured != pytest.approx(1.2 * course.variance, rel=0.06)


def test_shrinkage_is_half_of_james_and_stein_and_leaves_the_intercept():
    course = Course(WhitenedNewton(6, 2.0), (11, 1), None, 0.1)
    for _ in range(6):
        course.step(torch.ones(11, 1).double())
    taken = 0.5 * 8 * course.variance / float(course.mean[:-1].square().sum())
    assert 0 < taken < 1
    assert course.shrunk()[:-1].numpy() == pytest.approx((course.mean[:-1] * (1 - taken)).numpy())
    assert course.shrunk()[-1] == course.mean[-1]


def test_a_wrong_moment_clip_shows():
    problem = LogisticRegression(D)
    data = learnable(problem, (2500, 2500), seed=2)
    x, y = (torch.as_tensor(np.concatenate(each)) for each in zip(*data, strict=True))
    typical = float(x.square().sum(1).mean())

    def loss(clip):
        losses = []
        for seed in range(6):
            algorithm = WhitenedNewton(10, clip, clip_factor=1.5)
            gate = open_gate(data, problem, algorithm, epsilon=1.0, seed=seed)
            z = [each.noise_multiplier for each in gate.gate.admitted]
            public = public_of([2500, 2500])
            public = type(public)(public.names, public.sizes, public.weights, torch.tensor(z).double())
            w = drive(gate, algorithm, problem, public, all_take_part(gate.gate.plan, 2))[-1].answer
            losses.append(float(problem.losses(problem.scores(x, w), y).mean()))
        return np.mean(losses)

    right = loss(0.8 * typical)
    assert loss(60 * typical) > right + 0.003  # noise of a bound that no record needs
    assert loss(0.002 * typical) > right + 0.003  # every record shortened to nothing


def test_recalibration_undoes_what_was_done_to_the_odds():
    rng = np.random.default_rng(4)
    odds = rng.normal(-2.0, 1.5, 200_000)
    y = rng.random(len(odds)) < 1 / (1 + np.exp(-(0.7 + 1.4 * odds)))
    centre = -2.0
    bins = ((1 / (1 + np.exp(-(odds - centre)))) * 16).astype(int)
    cells = np.array([np.bincount(bins[y == k], minlength=16) for k in (0, 1)]) / len(y)
    intercept, slope = recalibrated(torch.as_tensor(cells), centre, float(len(y)), 1e-6)
    assert (intercept, slope) == (pytest.approx(0.7, abs=0.1), pytest.approx(1.4, abs=0.06))
    noisy = torch.as_tensor(cells + rng.normal(size=cells.shape))  # of which nothing can be learnt
    assert recalibrated(noisy, centre, float(len(y)), 1.0) == pytest.approx((0.0, 1.0), abs=0.1)


def test_a_model_whose_odds_are_off_is_corrected():
    """The clip takes most of a rare class's pull, so that the model is far too sure that nobody has it."""
    problem, rng = LogisticRegression(D), np.random.default_rng(7)
    x = np.hstack([rng.normal(size=(40_000, D - 1)) * 0.5, np.ones((40_000, 1))])
    y = (rng.random(40_000) < 1 / (1 + np.exp(3.0 - 6 * x[:, 0]))).astype(float)
    data = [(x[:20_000], y[:20_000]), (x[20_000:], y[20_000:])]
    x, y, off = torch.as_tensor(x), torch.as_tensor(y), {}
    for share in (0.0, 0.02):
        algorithm = WhitenedNewton(12, 1.6, clip_factor=0.3, recalibration_share=share)
        w = model_of(problem, data, algorithm, epsilon=8.0)
        off[share] = abs(float(torch.sigmoid(x @ w).mean() - y.mean()))
    assert off[0.0] > 0.02
    assert off[0.02] < off[0.0] / 2


@pytest.mark.parametrize(
    ("problem", "numbers", "why"),
    [
        (AbsoluteError(D), {}, "problem: logistic_regression, softmax"),
        (LogisticRegression(D, 1, Composite(constraint=L2Ball(1.0))), {}, "l2 or a ridge alone"),
        (LogisticRegression(D, 1, Composite(l1=0.1)), {}, "l2 or a ridge alone"),
        (SoftmaxRegression(D, 3), {"recalibration_share": 0.02}, "two classes"),
    ],
    ids=["kink", "ball", "l1", "recalibration"],
)
def test_problems_that_it_cannot_solve_are_refused(problem, numbers, why):
    with pytest.raises((InputError, PluginError), match=why):
        dry_run(WhitenedNewton(3, 2.0, **numbers), problem, public_of((40, 40)), 0, LIMITS)


def test_shares_that_leave_nothing_are_refused():
    with pytest.raises(InputError, match="leave some of mu"):
        WhitenedNewton(3, 2.0, moment_share=0.98, class_share=0.05)


@pytest.mark.parametrize("unit", [{"bound": "limit", "h": 8}, {"bound": "smooth", "h": 8}, {"bound": "mean"}])
def test_persons_of_few_records_take_whole_steps(unit):
    rng = np.random.default_rng(8)
    x = rng.uniform(-1, 1, (6000, 3)) * [1.0, 0.3, 0.1]
    y = (rng.random(6000) < 1 / (1 + np.exp(-(x @ [2.0, 6.0, 15.0] + 0.5)))).astype(int)
    persons = np.repeat(np.arange(3000), 2)  # two records each, a quarter of h
    data = fedsim.Arrays(x, y, np.repeat(["a", "b"], 3000), ranges=(-1.0, 1.0), person=persons)
    tree = once(
        data=data,
        partition="natural_id",
        problem={"name": "logistic_regression", "silo_weights": "size"},
        algorithm={"name": "whitened_newton", "num_rounds": 14, "moment_clip": 1.2, "steps": 7.0},
        privacy={"epsilon": 100.0, "unit": {"name": "person", **unit}},
        report={"nonprivate_baseline": False},
        seed=1,
    )
    summary = fedsim.simulate(parse(tree), progress=False).summary
    pooled = next(each for each in summary.baselines if each.name == "pooled")
    majority = next(each for each in summary.baselines if each.name == "majority")
    assert summary.metrics.log_loss - pooled.log_loss < 0.05 * (majority.log_loss - pooled.log_loss)


def test_a_start_that_is_given_is_where_it_starts():
    problem, algorithm = LinearRegression(D), long(num_rounds=3, steps=3e-9)
    gate = open_gate(learnable(problem, SIZES), problem, algorithm, mechanism=NONE, epsilon=math.inf)
    start, rounds = torch.linspace(-1, 1, D).double(), all_take_part(gate.gate.plan, 2)
    about = algorithm, problem, public_of(SIZES), 0, DirectLink(gate.answer), rounds, weighted
    *_, last = run(*about, start=start)
    assert last.answer.numpy() == pytest.approx(start.numpy(), abs=1e-6)


_F1 = "it refuses the l1 and the ball of this problem"


class TestWhitenedNewton(AlgorithmTests):
    """What must hold of every algorithm."""

    example = Example(
        short=lambda batch: WhitenedNewton(4, 2.0),
        convergent=lambda step: WhitenedNewton(400, 200.0, steps=200.0, clip_factor=100.0),
        tolerance=0.01,
        left_out={
            "linear in a ball": _F1,
            "same for one silo and a cohort": _F1,
            "memory of what was given only": _F1,
            "linear where it says so": _F1,
        },
    )
