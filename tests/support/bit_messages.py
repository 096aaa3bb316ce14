"""The thesis's vector sum as it is sent: a coordinate's bits, shuffled (Algorithms 16, 17, corrected).

What `ShuffledBinomial` adds up has the same distribution and is all that a product needs; this is the
protocol itself, at sizes where every bit can be held.
"""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]
Steps = npt.NDArray[np.float64]


def shuffled(steps: Steps, shifts: npt.NDArray[np.int64], fair: int, rng: np.random.Generator) -> Bits:
    """All silos' messages, per coordinate in random order: (sum of messages, d) zeros and ones.

    Args:
        steps: w_i S_i / step, (silos, d), between -shift and shift of its silo.
        shifts: G_i, (silos,).
        fair: b, of each silo and coordinate.
        rng: rounds, draws the fair bits and shuffles.
    """
    shifted = steps + shifts[:, None]
    ones = np.floor(shifted + rng.random(steps.shape)).astype(np.int64)
    encoded = [_unary(row, 2 * shift) for row, shift in zip(ones, shifts.tolist(), strict=True)]
    noise = rng.integers(0, 2, size=(len(steps) * fair, steps.shape[1]), dtype=np.uint8)
    return rng.permuted(np.concatenate([*encoded, noise]), axis=0)


def total(messages: Bits, shifts: npt.NDArray[np.int64], fair: int) -> npt.NDArray[np.float64]:
    """The sum of the silos in steps, (d,): ones less sum_i (G_i + b / 2)."""
    return messages.sum(axis=0) - (shifts.sum() + len(shifts) * fair / 2)


def _unary(ones: npt.NDArray[np.int64], length: int) -> Bits:
    """(length, d): as many ones in each column, then zeros."""
    return (np.arange(length)[:, None] < ones).astype(np.uint8)
