"""Scores clipped before loss and slope, wherever a record's term is made."""

from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.scenarios import once

from fedsim.common.errors import InputError
from fedsim.problems.glm import ClippedLogisticRegression, LogisticRegression
from fedsim.problems.minimise import NoOptimumError, smooth
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.side_by_side import SideBySide
from silos.vault.records import Records

B, CLIP = 2.0, 1.5
PROBLEM = ClippedLogisticRegression(3, score_bound=B)


def test_loss_and_slope_are_those_of_the_clipped_score() -> None:
    scores, target = torch.tensor([-9.0, -1.0, 1.5, 9.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    clipped = torch.tensor([-B, -1.0, 1.5, B])
    plain, ones = LogisticRegression(3), torch.ones(4)
    torch.testing.assert_close(PROBLEM.losses(scores, target), plain.losses(clipped, target))
    found = PROBLEM.coefficient(scores.clone(), target, ones)
    torch.testing.assert_close(found, plain.coefficient(clipped, target, ones))
    assert (found[[0, 3]].abs() > 0.8).all()  # not 0 beyond the bound
    assert PROBLEM.error(scores, target) == plain.error(scores, target)
    torch.testing.assert_close(PROBLEM.probabilities(scores), plain.probabilities(scores))


@pytest.mark.parametrize("copies", [1, 2])
def test_a_silos_sum_is_that_of_its_records_clipped_scores(copies: int) -> None:
    rng = np.random.default_rng(0)
    silos = [(rng.normal(size=(n, 3)), rng.integers(0, 2, n).astype(float)) for n in (7, 5)]
    records = SideBySide(silos, PROBLEM, torch.float64, copies) if copies > 1 else None
    records = records or Records(silos, PROBLEM, torch.float64)
    points = torch.tensor(rng.normal(size=(2 * copies, 3)) * 5)
    found = torch.zeros(2 * copies, 3, dtype=torch.float64)
    for block in records._blocks:
        found[block.members] = records.clipped_sum(PROBLEM, block, [points[block.members]], CLIP)
    beyond = 0
    for member, w in enumerate(points.numpy()):
        features, target = silos[member % 2]
        scores = features @ w
        beyond += (np.abs(scores) > B).sum()
        slope = 1 / (1 + np.exp(-np.clip(scores, -B, B))) - target
        terms = slope[:, None] * features
        norms = np.linalg.norm(terms, axis=1, keepdims=True)
        expected = (terms * np.minimum(1, CLIP / norms)).sum(axis=0)
        np.testing.assert_allclose(found[member].numpy(), expected, rtol=1e-6)
    assert beyond > 5


def test_it_is_not_taken_for_its_convex_parent() -> None:
    """Newton's method has the parent's Hessian, which is not this loss's."""
    assert smooth(LogisticRegression(3)) == LogisticRegression(3)
    with pytest.raises(NoOptimumError, match="ClippedLogisticRegression"):
        smooth(PROBLEM)


def scenario(problem: dict[str, Any]) -> Any:
    return parse(once(data={"link": "softmax", "classes": 2}, problem=problem))


def test_a_scenario_asks_for_it_by_its_bound() -> None:
    made = resolve(scenario({"name": "logistic_regression", "score_bound": 15})).problem
    assert isinstance(made, ClippedLogisticRegression)
    assert made.score_bound == 15
    assert type(resolve(scenario({"name": "logistic_regression"})).problem) is LogisticRegression
    with pytest.raises(InputError, match=r"score_bound: 15.0: only with logistic_regression, .* hinge_loss"):
        resolve(scenario({"name": "hinge_loss", "score_bound": 15}))
    with refused("scenario.problem.score_bound"):
        scenario({"name": "logistic_regression", "score_bound": 0})
