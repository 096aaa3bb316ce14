"""Breast Cancer Wisconsin (diagnostic), with the ranges that its documentation states.

The documented ranges are rounded extremes of these same published records. They are public constants here;
an organisation with records of its own must take ranges from elsewhere.

References: W. Wolberg, O. Mangasarian, N. Street, W. Street: Breast Cancer Wisconsin (Diagnostic), UCI
machine learning repository, doi:10.24432/C5DW2B. Ranges: "Summary Statistics" in scikit-learn's description
of the data set (`sklearn.datasets.load_breast_cancer().DESCR`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.data.dataset import Dataset
from fedsim.data.source import Floats, Ints, Matrix, Ranges

ROWS = 569
TARGET = "diagnosis"
CLASSES = ("malignant", "benign")  # scikit-learn's codes 0 and 1

# A logarithm needs a positive lower end. Where the documented minimum is 0 it is this fraction of the
# documented maximum: a public rule, so the smallest positive record need not be read.
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


class BreastCancer(Dataset):
    """Breast Cancer Wisconsin (diagnostic): 569 records, 30 features; 0 malignant, 1 benign."""

    name: Literal["breast_cancer"] = Field("breast_cancer", description="The data set's name.")

    def open(self) -> BreastCancerSource:
        """All that is public; records are read when asked for."""
        return BreastCancerSource()


def documented_ranges() -> Ranges:
    """The documented ranges, on a log scale."""
    low, high = np.array(list(DOCUMENTED.values())).T
    everywhere = np.ones(len(DOCUMENTED), dtype=bool)
    return Ranges(np.where(low > 0, low, FLOOR * high), high, log=everywhere, numeric=everywhere)


class BreastCancerSource(Matrix):
    """569 records in scikit-learn's order; sizes are known without reading them."""

    target = TARGET
    names = tuple(DOCUMENTED)
    columns = (*DOCUMENTED, TARGET)
    num_rows = ROWS
    num_features = len(DOCUMENTED)
    num_classes = len(CLASSES)
    classes = CLASSES
    ranges = documented_ranges()

    @cached_property
    def _bunch(self) -> Any:
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer()

    @property
    def features(self) -> Floats:
        """Measurements as published."""
        return np.asarray(self._bunch.data, dtype=np.float64)

    def other(self, column: str) -> Ints:
        """The diagnosis."""
        return np.asarray(self._bunch.target, dtype=np.int64)
