"""Handwritten digits of 8 x 8 pixels.

References: E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI machine learning
repository, doi:10.24432/C50P49, the test part, as `sklearn.datasets.load_digits` ships it: pixels are whole
numbers in 0..16.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.source import Floats, Ints, Matrix, Ranges

ROWS = 1797
SIDE = 8
BRIGHTEST = 16.0
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))


class Digits(Dataset):
    """Handwritten digits of 8 x 8 pixels: 1,797 records, 64 features; the digit, or odd against even."""

    name: Literal["digits"] = Field("digits", description="The data set's name.")
    task: Literal["digit", "parity"] = Field(
        "digit", description="digit: ten classes; parity: 1 for odd, 0 for even digits."
    )

    def open(self) -> DigitsSource:
        """All that is public; records are read when asked for."""
        return DigitsSource(self.task)


class DigitsSource(Matrix):
    """1,797 records in scikit-learn's order; both tasks keep both label columns."""

    names = PIXELS
    columns = (*PIXELS, "digit", "parity")
    num_rows = ROWS
    num_features = len(PIXELS)
    ranges = Ranges.linear(np.zeros(len(PIXELS)), np.full(len(PIXELS), BRIGHTEST))
    label_column = "digit"
    label_pairs = (tuple("02468"), tuple("13579"))

    def __init__(self, task: Literal["digit", "parity"]) -> None:
        self.target = task
        self.num_classes = {"digit": 10, "parity": 2}[task]

    @cached_property
    def _bunch(self) -> Any:
        from sklearn.datasets import load_digits

        return load_digits()

    @property
    def features(self) -> Floats:
        """Each pixel's brightness."""
        return np.asarray(self._bunch.data, dtype=np.float64)

    def other(self, column: str) -> Ints:
        """The digit or its parity."""
        digits = np.asarray(self._bunch.target, dtype=np.int64)
        return digits % 2 if column == "parity" else digits
