"""Each statistic's spread: brute force over replaced records, with equality at the worst pair."""

import numpy as np
import pytest
import torch

from fedsim.problems.glm import LinearRegression
from fedsim.protocol.statistics import STATISTICS
from silos.records import Records

FEATURES = 3
PROBLEM = LinearRegression(FEATURES)


def sums(statistic, rows, targets, points, clip):
    """The clipped sum of each of many silos of two records, the second of which is common to all."""
    common = np.ones((1, FEATURES)), np.ones(1)
    silos = [(np.vstack([x, common[0]]), np.append(y, common[1])) for x, y in zip(rows, targets, strict=True)]
    records = Records(silos, PROBLEM, torch.float64)
    (block,) = records.full(range(len(silos)))
    return records.clipped_sum(PROBLEM, block, points, clip)


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=list(STATISTICS))
def test_replacing_a_record_moves_a_sum_by_the_spread_times_the_clip_at_most(statistic):
    rng, clip = np.random.default_rng(5), 0.25
    rows = rng.standard_normal((60, 1, FEATURES)) * np.geomspace(0.1, 1e4, 60)[:, None, None]
    opposite = np.array([[[1.0, 1e4, 0.0]], [[1.0, -1e4, 0.0]]])  # of a monotone gradient's differences
    rows = np.concatenate([rows, rows, opposite])
    targets = np.where(np.arange(len(rows)) < 60, 1e6, -1e6)[:, None]
    points = [torch.eye(FEATURES, dtype=torch.float64)[0] / 2**k for k in range(len(statistic.points))]
    moved = sums(statistic, rows, targets, points, clip)
    apart = torch.cdist(moved, moved, compute_mode="donot_use_mm_for_euclid_dist").max().item()
    allowed = statistic.sensitivity(clip)
    assert apart <= allowed * (1 + 1e-9)
    assert apart >= allowed * (1 - 1e-7)  # a spread of less would be exceeded
    assert moved.shape[1] == statistic.size(PROBLEM.dimension)
