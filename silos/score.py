"""How many of its records a model gets wrong: the one release that is no mean of gradients.

Guarantee: a model's score at a silo is its number of mistakes plus N(0, z^2). A record is wrong or right, 0
or 1 by its own values and the model's alone, so that replacing one record moves the number by at most 1: a
Gaussian mechanism with noise multiplier z. A record that the model cannot be applied to is wrong: it must
not decide whether there is a score. The silo divides by its public number of records. A scorer
answers one request in its life, so that the price of a plan of scores, one release of weight 1 for each
scorer, is what is paid.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsim.common.errors import Refused
from fedsim.problems.kinds import Problem, scores_of_records
from fedsim.protocol.limits import Limits
from fedsim.protocol.plain import plain_tensor
from silos.entropy import Entropy, Purpose


class Scorer:
    """The records that a cohort of silos scores one model with."""

    def __init__(
        self,
        silos: Sequence[tuple[np.ndarray, np.ndarray]],
        problem: Problem,
        multipliers: Sequence[float],
        entropy: Entropy,
        limits: Limits,
        dtype: torch.dtype,
    ) -> None:
        """`silos`: features (n, d) and target (n,), classes from 0, n >= 1; `multipliers`: z of each silo."""
        self._records = [(torch.as_tensor(x).to(dtype), torch.as_tensor(y)) for x, y in silos]
        self._problem, self._entropy, self._limits = problem, entropy, limits
        self._multipliers = np.array(multipliers, dtype=np.float64)
        self._once = threading.Lock()  # taken by the one request that is answered

    def answer(self, w: Tensor) -> np.ndarray:
        """Each silo's noisy share of records that the model w, (d,), gets wrong; may lie outside [0, 1].

        Raises:
            Refused: a point out of bounds or no plain tensor, or a second request.
        """
        w = plain_tensor(w, "a model")
        self._limits.check_point(w, self._problem.dimension)
        if not self._once.acquire(blocking=False):
            raise Refused("a score was released already; one is paid for")
        wrong = [mistakes(scores_of_records(self._problem, x, w), y).sum() for x, y in self._records]
        streams = self._entropy.streams(range(len(self._records)), 0, Purpose.SCORE)
        noise = np.array([stream.standard_normal() for stream in streams])
        sizes = np.array([len(target) for _, target in self._records])
        return np.asarray((np.array(wrong, dtype=np.float64) + self._multipliers * noise) / sizes)


def mistakes(scores: Tensor, target: Tensor) -> Tensor:
    """Which records are misclassified, (records,) of truth values; scores that are no numbers are a mistake.

    Args:
        scores: (records,), predicting class 1 where positive and else 0, or (records, classes).
        target: classes, (records,).
    """
    predicted = (scores > 0).long() if scores.dim() == 1 else scores.argmax(-1)
    unknown = scores.isnan() if scores.dim() == 1 else scores.isnan().any(-1)
    return (predicted != target) | unknown
