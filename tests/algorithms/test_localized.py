"""The localized algorithm: the minimisers of its phases, where it stays, what a record pays."""

import math

import numpy as np
import pytest
import torch
from support.helpers import drive, open_gate, public_of, silos_of

from fedsim.algorithms.localized_accelerated_sgd import LocalizedAcceleratedSGD
from fedsim.common.errors import InputError
from fedsim.privacy.cost import compose
from fedsim.privacy.registry import NONE
from fedsim.problems.composite import Composite
from fedsim.problems.glm import LinearRegression
from fedsim.problems.regularisers import Box
from fedsim.protocol.batch import FULL
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Release
from fedsim.testing.federations import all_take_part
from silos.vault.entropy import Purpose

D, SIZES = 4, (64, 128)


def run(algorithm, problem, data):
    gate = open_gate(data, problem, algorithm, mechanism=NONE, epsilon=math.inf)
    rounds = drive(gate, algorithm, problem, public_of(SIZES), all_take_part(gate.gate.plan, 2))
    return gate, [each.answer.numpy() for each in rounds]


def order(gate, member, n):
    (stream,) = gate.gate.releases.batches._entropy.streams([member], 0, Purpose.PERMUTATION)
    return stream.permutation(n)


def test_without_noise_each_phase_ends_at_the_minimiser_of_its_part_and_regulariser():
    problem, weight, phases, rounds = LinearRegression(D), 0.5, 2, 1_200
    data = silos_of(problem, SIZES, seed=3)
    algorithm = LocalizedAcceleratedSGD(phases, rounds, 0.1, weight, 1.0, 1e6)
    gate, answers = run(algorithm, problem, data)
    centre = np.zeros(D)
    for i, part in enumerate(algorithm.parts):
        own = weight * 2**i
        left, right = own * np.eye(D), own * centre
        for member, ((x, y), n) in enumerate(zip(data, SIZES, strict=True)):
            chosen = order(gate, member, n)[slice(*part.bounds(n))]
            share = n / sum(SIZES) / len(chosen)
            left, right = left + share * x[chosen].T @ x[chosen], right + share * x[chosen].T @ y[chosen]
        centre = np.linalg.solve(left, right)
        last = answers[min((i + 1) * rounds, len(answers) - 1)]
        np.testing.assert_allclose(last, centre, atol=2e-4)


def test_a_phase_stays_in_its_ball_and_in_the_constraint_set():
    """Clip 0.1 and lambda 0.5: within 0.4 of 0, then within 0.2 of where phase 1 ended."""
    problem = LinearRegression(D, 1, Composite(constraint=Box(-0.3, 0.3)))
    data = [(x, y + 50.0) for x, y in silos_of(problem, SIZES, seed=3)]
    _, answers = run(LocalizedAcceleratedSGD(2, 300, 50.0, 0.5, 1.0, 0.1), problem, data)
    away = [np.linalg.norm(answer - answers[300 * (r // 300)]) for r, answer in enumerate(answers[:600])]
    assert max(away[:300]) <= 0.4 + 1e-9
    assert max(away[300:]) <= 0.2 + 1e-9
    assert max(away[:300]) > 0.1
    assert np.abs(np.stack(answers)).max() <= 0.3 + 1e-12


def test_a_record_pays_for_the_rounds_of_one_phase():
    plan = dry_run(
        LocalizedAcceleratedSGD(3, 7, 1.0, 0.1, 2.0, 1.0), LinearRegression(D), public_of((256,)), 0, LIMITS
    ).plan
    assert len(plan.rounds) == 21
    assert compose(plan.census(), 256).weight == compose(((Release(FULL, 1.0), 7),), 256).weight
    assert len({ask.batch for ask in plan.asks}) == 3


def test_too_many_phases_for_a_silo_name_it_and_the_most():
    algorithm = LocalizedAcceleratedSGD(4, 1, 1.0, 0.1, 2.0, 1.0)
    dry_run(algorithm, LinearRegression(D), public_of((256, 900)), 0, LIMITS)
    with pytest.raises(InputError, match=r"phases: 4: at most 3: .*'silo1', of 240 units, would hold 15"):
        dry_run(algorithm, LinearRegression(D), public_of((300, 240)), 0, LIMITS)


def test_the_added_regulariser_is_not_clipped():
    """Far from the centre its gradient is longer than any clip, and it is added whole."""
    problem, algorithm = LinearRegression(D), LocalizedAcceleratedSGD(1, 2, 1.0, 10.0, 0.0, 1e-3)
    run = algorithm.server(torch.zeros(D).double(), problem, public_of((64,)), None)
    next(run)
    w = run.send({"g": torch.full((D,), 1e-4).double()}).broadcast["phase 1"]
    assert 0 < float(w.norm()) <= 2 * 1e-3 / 10
