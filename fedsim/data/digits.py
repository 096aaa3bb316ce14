"""Handwritten digits of 8 x 8 pixels.

References: E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI machine learning
repository, doi:10.24432/C50P49, the test part, as `sklearn.datasets.load_digits` ships it: pixels are whole
numbers in 0..16.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedsim.data.datasets import Digits
from fedsim.data.source import Design, Floats, Ints, Labels, Ranges, whole_numbers

ROWS = 1797
SIDE = 8
BRIGHTEST = 16.0
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))


class DigitsSource:
    """1,797 records in scikit-learn's order; both tasks keep both label columns."""

    label_column = "digit"
    columns = (*PIXELS, "digit", "parity")
    num_rows = ROWS
    num_features = len(PIXELS)

    def __init__(self, config: Digits) -> None:
        self.target = config.task
        self.num_classes = {"digit": 10, "parity": 2}[config.task]

    @cached_property
    def _bunch(self) -> Any:
        from sklearn.datasets import load_digits

        return load_digits()

    @property
    def _pixels(self) -> Floats:
        return np.asarray(self._bunch.data, dtype=np.float64)

    def _codes(self, column: str) -> Ints:
        digits = np.asarray(self._bunch.target, dtype=np.int64)
        return digits % 2 if column == "parity" else digits

    def keys(self, column: str, field: str) -> Floats:
        """The digit, its parity or a pixel's brightness."""
        if column in PIXELS:
            return self._pixels[:, PIXELS.index(column)]
        return self._codes(column).astype(np.float64)

    def labels(self, column: str, field: str) -> Labels:
        """Digits are '0' to '9', parities '0' and '1'."""
        return whole_numbers(self.keys(column, field), column, field)

    def design(self) -> Design:
        """Raw pixels and the task's classes."""
        d = len(PIXELS)
        ranges = Ranges(np.zeros(d), np.full(d, BRIGHTEST), np.zeros(d, dtype=bool), np.ones(d, dtype=bool))
        return Design(self._pixels, ranges, self._codes(self.target), None)
