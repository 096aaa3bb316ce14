"""Answers that are drawn by the exponential mechanism, from scores that one record moves by at most 1.

A release at multiplier z ratio is of mu = 1 / (z ratio), as a Gaussian one; the mechanism's epsilon is the
one that costs that much (`fedsim.privacy.exponential`), rounded down, over half of how far apart a unit moves
two scores (`half_range` of `fedsim.protocol.unit`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.privacy.exponential import Scores, epsilon_of
from fedsim.privacy.mechanism import Mechanism

PER_ONE = 10**6 * 2**16
"""Parts of a score that are worth 1: scores are whole numbers of them, so that a draw can be exact."""


def drawn(
    scores: Tensor, multipliers: Tensor, half_range: float, mechanism: Mechanism, noise: Callable[[], Tensor]
) -> Tensor:
    """An index for each silo, (silos, 1), float64, by scores (silos, candidates), int64 parts.

    Multipliers are z ratio, (silos, 1), and `noise` gives a standard normal number for each silo, (silos, 1).
    Of a mechanism with exact noise the draw is exact; without privacy the best candidate is taken.
    """
    own = [Scores(row, PER_ONE) for row in scores.numpy()]
    prices = multipliers.flatten().tolist() if mechanism.private else []
    epsilons = [float(epsilon_of(1 / z)) / half_range for z in prices]
    found = mechanism.choose(own, epsilons, noise)
    return torch.tensor(found, dtype=torch.float64).unsqueeze(-1)
