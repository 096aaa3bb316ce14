"""Algorithms of a second moment: exact without noise, and their view of the noise is the noise."""

import math

import numpy as np
import pytest
import torch
from support.helpers import drive, open_gate, public_of, silos_of

from fedsim.algorithms.base import moment_of, spectral_norm
from fedsim.algorithms.preconditioned_sgd import PreconditionedSGD
from fedsim.algorithms.sufficient_statistics import SufficientStatistics
from fedsim.common.errors import InputError, PluginError
from fedsim.privacy.registry import NONE
from fedsim.problems.glm import AbsoluteError, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.protocol.batch import FULL
from fedsim.protocol.contract import Public, Query
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import LIMITS
from fedsim.testing.federations import all_take_part

D = 4


def least_squares(data, weights):
    x = np.concatenate([x * math.sqrt(p / len(y)) for p, (x, y) in zip(weights, data, strict=True)])
    y = np.concatenate([y * math.sqrt(p / len(y)) for p, (_, y) in zip(weights, data, strict=True)])
    return np.linalg.lstsq(x, y, rcond=None)[0]


@pytest.mark.parametrize("algorithm", [SufficientStatistics(), PreconditionedSGD(num_rounds=1)])
def test_without_noise_and_clip_one_solution_is_the_least_squares(algorithm):
    problem = LinearRegression(D)
    data = silos_of(problem, (30, 50), seed=3)
    gate = open_gate(data, problem, algorithm, mechanism=NONE, epsilon=math.inf)
    rounds = all_take_part(gate.gate.plan, 2)
    model = drive(gate, algorithm, problem, public_of((30, 50)), rounds)[-1].answer
    exact = least_squares(data, (30 / 80, 50 / 80))
    assert model.numpy() == pytest.approx(exact, abs=1e-4)  # the ridge is a millionth of the clip


def test_a_stage_of_share_s_has_that_share_of_the_squares():
    algorithm = PreconditionedSGD(num_rounds=7, moment_share=0.3)
    trace = dry_run(algorithm, LogisticRegression(D), public_of((40, 40)), 0, LIMITS)
    (moment,), *rounds = trace.plan.rounds
    square = moment.weight**2
    assert square / (square + sum(ask.weight**2 for (ask,) in rounds)) == pytest.approx(0.3)
    assert len(rounds) == 7


def test_several_outputs_share_the_preconditioner():
    problem = SoftmaxRegression(D, 3)
    trace = dry_run(PreconditionedSGD(), problem, public_of((40, 40)), 0, LIMITS)
    assert trace.messages[0] == (("h", D * (D + 1) // 2),)
    assert trace.messages[1] == (("g", 3 * D),)


@pytest.mark.parametrize("summed", [False, True])
def test_the_spectral_norm_is_that_of_the_noise(summed):
    side, clip, rng = 60, 3.0, np.random.default_rng(0)
    sizes, z = torch.tensor([100, 300]), torch.tensor([2.0, 1.0], dtype=torch.float64)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    public = Public(("a", "b"), sizes, weights, z, summed)
    per_unit = 1.0 * 0.0025 if summed else math.hypot(2.0 * 0.0025, 1.0 * 0.0025)
    query = Query("second_moment", (), clip, FULL, 1.5)
    sigma = 1.5 * per_unit * math.sqrt(2) * clip
    assert public.noise(query) == pytest.approx(sigma)
    noise = moment_of(torch.as_tensor(sigma * rng.standard_normal(side * (side + 1) // 2)))
    largest = float(torch.linalg.eigvalsh(noise).abs().max())
    assert largest == pytest.approx(spectral_norm(public, query, side), rel=0.15)


@pytest.mark.parametrize(
    ("algorithm", "problem", "why"),
    [
        (SufficientStatistics(), LogisticRegression(D), "problem: linear_regression"),
        (PreconditionedSGD(), AbsoluteError(D), "largest second derivative"),
    ],
)
def test_problems_that_it_cannot_solve_are_refused(algorithm, problem, why):
    with pytest.raises((InputError, PluginError), match=why):
        dry_run(algorithm, problem, public_of((40, 40)), 0, LIMITS)
