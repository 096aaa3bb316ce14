"""Algorithms of a second moment: exact without noise, and their view of the noise is the noise."""

import math

import numpy as np
import pytest
import torch
from support.helpers import drive, open_gate, public_of, silos_of

from fedsim.algorithms.base import moment_of, spectral_norm
from fedsim.algorithms.sufficient_statistics import SufficientStatistics
from fedsim.common.errors import InputError, PluginError
from fedsim.privacy.registry import NONE
from fedsim.problems.glm import LinearRegression, LogisticRegression
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


def test_without_noise_and_clip_one_solution_is_the_least_squares():
    algorithm, problem = SufficientStatistics(), LinearRegression(D)
    data = silos_of(problem, (30, 50), seed=3)
    gate = open_gate(data, problem, algorithm, mechanism=NONE, epsilon=math.inf)
    rounds = all_take_part(gate.gate.plan, 2)
    model = drive(gate, algorithm, problem, public_of((30, 50)), rounds)[-1].answer
    exact = least_squares(data, (30 / 80, 50 / 80))
    assert model.numpy() == pytest.approx(exact, abs=1e-4)  # the ridge is a millionth of the clip


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


def test_a_problem_that_it_cannot_solve_is_refused():
    with pytest.raises((InputError, PluginError), match="problem: linear_regression"):
        dry_run(SufficientStatistics(), LogisticRegression(D), public_of((40, 40)), 0, LIMITS)
