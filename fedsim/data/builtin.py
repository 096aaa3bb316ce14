"""Data sets that need no file: two that are shipped with scikit-learn, and synthetic ones.

The ranges of breast cancer are those that its documentation states: rounded extremes of these same published
records. They are public constants here; an organisation with records of its own must take ranges from
elsewhere. Pixels of digits are whole numbers in 0..16.

Synthetic records follow generalised linear models whose population optimum is known. Features x are uniform
on [-1, 1]^d, with a constant 1 appended if there is an intercept. Parameters w* are drawn once with
E|w*|^2 = STRENGTH^2 (per class), and the target follows the model of the link:

- logistic: P(y = 1 | x) = 1 / (1 + exp(-<w*, x>)), the minimiser of E log(1 + exp(-(2y - 1) <w, x>));
- linear: y = <w*, x> + noise z with z ~ N(0, 1), the minimiser of E (<w, x> - y)^2;
- softmax: P(y = k | x) proportional to exp(<w*_k, x>), a minimiser of E [log sum_j exp(<w_j, x>) - <w_y, x>];
  the last class has w*_k = 0, which makes it the only one of that form.

References: W. Wolberg, O. Mangasarian, N. Street, W. Street: Breast Cancer Wisconsin (Diagnostic), UCI
machine learning repository, doi:10.24432/C5DW2B. Ranges: "Summary Statistics" in scikit-learn's description
of the data set (`sklearn.datasets.load_breast_cancer().DESCR`). E. Alpaydin, C. Kaynak: Optical Recognition
of Handwritten Digits, UCI machine learning repository, doi:10.24432/C50P49, the test part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.seeds import generator
from fedsim.data.dataset import Dataset
from fedsim.data.source import Design, Floats, Ints, Labels, Matrix, Ranges, Target

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


class _Bundled(Matrix):
    """Records in scikit-learn's order; sizes are known without reading them."""

    loader: ClassVar[str]

    @cached_property
    def _bunch(self) -> Any:
        from sklearn import datasets

        return getattr(datasets, self.loader)()

    @property
    def features(self) -> Floats:
        return np.asarray(self._bunch.data, dtype=np.float64)

    def other(self, column: str) -> Ints:
        return np.asarray(self._bunch.target, dtype=np.int64)


class BreastCancer(Dataset):
    """Breast Cancer Wisconsin (diagnostic): 569 records, 30 features; 0 malignant, 1 benign."""

    name: Literal["breast_cancer"] = Field("breast_cancer", description="The data set's name.")

    def open(self) -> Matrix:
        """The source; records are read at first use."""
        return _BreastCancerSource()


def documented_ranges() -> Ranges:
    """The documented ranges, on a log scale."""
    low, high = np.array(list(DOCUMENTED.values())).T
    everywhere = np.ones(len(DOCUMENTED), dtype=bool)
    return Ranges(np.where(low > 0, low, FLOOR * high), high, log=everywhere, numeric=everywhere)


class _BreastCancerSource(_Bundled):
    loader = "load_breast_cancer"
    target = "diagnosis"
    names = tuple(DOCUMENTED)
    columns = (*DOCUMENTED, "diagnosis")
    num_rows = 569
    num_features = len(DOCUMENTED)
    classes = ("malignant", "benign")  # scikit-learn's codes 0 and 1
    num_classes = len(classes)
    ranges = documented_ranges()


SIDE = 8
BRIGHTEST = 16.0
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))


class Digits(Dataset):
    """Handwritten digits of 8 x 8 pixels: 1,797 records, 64 features; the digit, or odd against even."""

    images = True
    name: Literal["digits"] = Field("digits", description="The data set's name.")
    task: Literal["digit", "parity"] = Field(
        "digit", description="digit: ten classes; parity: 1 for odd, 0 for even digits."
    )

    def open(self) -> Matrix:
        """The source; records are read at first use."""
        return _DigitsSource(self.task)


class _DigitsSource(_Bundled):
    """Both tasks keep both label columns."""

    loader = "load_digits"
    names = PIXELS
    columns = (*PIXELS, "digit", "parity")
    num_rows = 1797
    num_features = len(PIXELS)
    ranges = Ranges.linear(np.zeros(len(PIXELS)), np.full(len(PIXELS), BRIGHTEST))
    label_column = "digit"
    label_pairs = (tuple("02468"), tuple("13579"))

    def __init__(self, task: Literal["digit", "parity"]) -> None:
        self.target = task
        self.num_classes = {"digit": 10, "parity": 2}[task]

    def other(self, column: str) -> Ints:
        digits = super().other(column)
        return digits % 2 if column == "parity" else digits


TARGET = "y"
STRENGTH = 3.0  # logits then have a standard deviation of about 1.7: neither separable nor noise


class Synthetic(Dataset):
    """A generalised linear model with features uniform on [-1, 1] and a known population optimum."""

    name: Literal["synthetic"] = Field("synthetic", description="The data set's name.")
    link: Literal["logistic", "linear", "softmax"] = Field(
        "logistic", description="How features set the target."
    )
    rows: int = Field(1000, ge=1, description="Records in all silos together.")
    features: int = Field(10, ge=1, description="Features, the intercept not counted.")
    classes: int = Field(3, ge=2, description="Classes (softmax only).")
    noise: float = Field(0.1, ge=0, description="Standard deviation of the target's noise (linear only).")
    seed: int = Field(0, ge=0, description="Seed of parameters and records, apart from the scenario's seed.")
    draw: int = Field(
        0,
        ge=0,
        exclude_if=lambda draw: not draw,
        description="Another number makes other records of the same parameters, such as public ones.",
    )
    normal: bool = Field(
        False,
        exclude_if=lambda normal: not normal,
        description="Features drawn from N(0, 1), without declared ranges.",
    )
    groups: bool = Field(
        False, description="Two groups, a and b, which the first feature tells apart but for noise."
    )

    def open(self) -> SyntheticSource:
        """The source; records are made at first use."""
        return SyntheticSource(self)

    @property
    def knows_optimum(self) -> bool:
        """Standardising, components and a record norm move the optimum."""
        return not self.pools_records and self.record_norm is None

    def check(self) -> None:
        """As of every data set; normal features have no range to be mapped from."""
        super().check()
        if self.normal and self.scaling == "declared":
            hint = "none, since normal features have no range"
            raise InputError("scenario.data.scaling", self.scaling, hint)


class SyntheticSource(Matrix):
    """Records made from the data set's own seed, so that they are the same whatever the scenario's seed."""

    target = TARGET

    def __init__(self, data: Synthetic) -> None:
        self._data = data
        self.names = tuple(f"x{j}" for j in range(data.features))
        self.columns = (*self.names, TARGET)
        self.num_rows, self.num_features = data.rows, data.features
        self.num_classes = {"logistic": 2, "linear": 0, "softmax": data.classes}[data.link]
        reach = np.full(data.features, np.inf if data.normal else 1.0)
        self.ranges = Ranges.linear(-reach, reach)
        self.groups = ("a", "b") if data.groups else ()

    def design(self, rows: Ints) -> Design:
        """With groups, which follow from the first feature and noise of standard deviation 0.5."""
        found = super().design(rows)
        if not self.groups:
            return found
        noise = self._generator("groups").normal(0.0, 0.5, self.num_rows)
        codes = (self.features[:, 0] + noise > 0).astype(np.int64)
        return replace(found, groups=Labels(codes, self.groups)[rows])

    @cached_property
    def features(self) -> Floats:
        """Already in their declared range."""
        rng, shape = self._generator("features"), (self._data.rows, self._data.features)
        return rng.standard_normal(shape) if self._data.normal else rng.uniform(-1.0, 1.0, shape)

    def _generator(self, what: str) -> np.random.Generator:
        draw = [self._data.draw] if self._data.draw else []
        return generator(f"synthetic {what}", self._data.seed, *draw)

    @property
    def optimum(self) -> Floats:
        """w*, flat; under softmax laid out (d, classes). The intercept comes last of the d."""
        return self._parameters.reshape(-1)

    @cached_property
    def _parameters(self) -> Floats:
        """w*: shape (d,), for softmax (d, classes) with zeros for the last class; d counts the intercept."""
        d = self._data.features + self._data.intercept
        free = self._data.classes - 1 if self._data.link == "softmax" else 1
        rng = generator("synthetic parameters", self._data.seed)
        drawn = rng.normal(0.0, STRENGTH / np.sqrt(d), (d, free))
        return np.hstack([drawn, np.zeros((d, 1))]) if self._data.link == "softmax" else drawn[:, 0]

    def other(self, column: str) -> Target:
        """The target."""
        return self._target

    @cached_property
    def _target(self) -> Target:
        w, d = self._parameters, self._data.features
        scores = self.features @ w[:d] + w[d:].sum(axis=0)
        rng = self._generator("target")
        if self._data.link == "linear":
            return np.asarray(scores + self._data.noise * rng.normal(size=len(scores)), dtype=np.float64)
        if self._data.link == "logistic":
            return np.asarray(rng.logistic(size=len(scores)) < scores, dtype=np.int64)
        # The largest of scores with independent Gumbel noise is a draw from the softmax.
        return np.asarray(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), dtype=np.int64)
