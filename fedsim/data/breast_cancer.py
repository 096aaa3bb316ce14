"""Breast Cancer Wisconsin (diagnostic), with the ranges that its documentation states.

The documented ranges are rounded extremes of these same published records. They are public constants here;
an organisation with records of its own must take ranges from elsewhere.

References: W. Wolberg, O. Mangasarian, N. Street, W. Street: Breast Cancer Wisconsin (Diagnostic), UCI
machine learning repository, doi:10.24432/C5DW2B. Ranges: "Summary Statistics" in scikit-learn's description
of the data set (`sklearn.datasets.load_breast_cancer().DESCR`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedsim.data.source import Design, Floats, Ints, Labels, Ranges, whole_numbers

ROWS = 569
TARGET = "diagnosis"
CLASSES = ("malignant", "benign")  # scikit-learn's codes 0 and 1

# A logarithm needs a positive lower end. Where the documented minimum is 0 it is this fraction of the
# documented maximum: a public rule, so that nobody has to look at the smallest positive record.
FLOOR = 0.01

DOCUMENTED = {
    "mean radius": (6.981, 28.11),
    "mean texture": (9.71, 39.28),
    "mean perimeter": (43.79, 188.5),
    "mean area": (143.5, 2501.0),
    "mean smoothness": (0.053, 0.163),
    "mean compactness": (0.019, 0.345),
    "mean concavity": (0.0, 0.427),
    "mean concave points": (0.0, 0.201),
    "mean symmetry": (0.106, 0.304),
    "mean fractal dimension": (0.05, 0.097),
    "radius error": (0.112, 2.873),
    "texture error": (0.36, 4.885),
    "perimeter error": (0.757, 21.98),
    "area error": (6.802, 542.2),
    "smoothness error": (0.002, 0.031),
    "compactness error": (0.002, 0.135),
    "concavity error": (0.0, 0.396),
    "concave points error": (0.0, 0.053),
    "symmetry error": (0.008, 0.079),
    "fractal dimension error": (0.001, 0.03),
    "worst radius": (7.93, 36.04),
    "worst texture": (12.02, 49.54),
    "worst perimeter": (50.41, 251.2),
    "worst area": (185.2, 4254.0),
    "worst smoothness": (0.071, 0.223),
    "worst compactness": (0.027, 1.058),
    "worst concavity": (0.0, 1.252),
    "worst concave points": (0.0, 0.291),
    "worst symmetry": (0.156, 0.664),
    "worst fractal dimension": (0.055, 0.208),
}


def ranges() -> Ranges:
    """The documented ranges, on a log scale."""
    low, high = np.array(list(DOCUMENTED.values())).T
    everywhere = np.ones(len(DOCUMENTED), dtype=bool)
    return Ranges(np.where(low > 0, low, FLOOR * high), high, log=everywhere, numeric=everywhere)


class BreastCancerSource:
    """569 records in scikit-learn's order; sizes are known without reading them."""

    target = label_column = TARGET
    columns = (*DOCUMENTED, TARGET)
    num_rows = ROWS
    num_features = len(DOCUMENTED)
    num_classes = len(CLASSES)

    @cached_property
    def _bunch(self) -> Any:
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer()

    @property
    def _classes(self) -> Ints:
        return np.asarray(self._bunch.target, dtype=np.int64)

    @property
    def _features(self) -> Floats:
        return np.asarray(self._bunch.data, dtype=np.float64)

    def keys(self, column: str, field: str) -> Floats:
        """A feature's raw values, or the class."""
        if column == TARGET:
            return self._classes.astype(np.float64)
        return self._features[:, self.columns.index(column)]

    def labels(self, column: str, field: str) -> Labels:
        """The diagnosis; the features are measurements."""
        if column == TARGET:
            return Labels(self._classes, CLASSES)
        return whole_numbers(self.keys(column, field), column, field)

    def design(self) -> Design:
        """Raw features and classes."""
        return Design(self._features, ranges(), self._classes, None)
