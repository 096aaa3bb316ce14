"""The change of epsilon under sampling: eps' = ln(1 + q (e^eps - 1)), and back; no overflow, either way."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def amplified(epsilon: float, q: float) -> float:
    """eps' of a release that is eps where the record takes part, which has probability q in (0, 1).

    >>> round(amplified(1.0, q=0.1), 4)
    0.1586
    """
    return float(np.logaddexp(math.log1p(-q), math.log(q) + epsilon))


def unamplified(epsilon: Array, q: float) -> Array:
    """Return the eps with eps' = `epsilon` >= 0: ln(1 + (e^eps' - 1) / q)."""
    # The first form is accurate near 0, the second cannot overflow.
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
    far = epsilon - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(epsilon, 1.0)))
    return np.where(epsilon < 1.0, near, far)
