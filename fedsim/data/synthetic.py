r"""Generalised linear models whose population optimum is known.

Features x are uniform on [-1, 1]^d, with a constant 1 appended if there is an intercept. Parameters w* are
drawn once with E|w*|^2 = STRENGTH^2 (per class), and the target follows the model of the link:

- logistic: P(y = 1 | x) = 1 / (1 + exp(-<w*, x>)), the minimiser of E log(1 + exp(-(2y - 1) <w, x>));
- linear: y = <w*, x> + noise z with z ~ N(0, 1), the minimiser of E (<w, x> - y)^2;
- softmax: P(y = k | x) proportional to exp(<w*_k, x>), a minimiser of E [log sum_j exp(<w_j, x>) - <w_y, x>];
  the last class has w*_k = 0, which makes it the only one of that form.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.common.seeds import generator
from fedsim.data.dataset import Dataset
from fedsim.data.source import Floats, Matrix, Ranges, Target

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

    def open(self) -> SyntheticSource:
        """All that is public; records are made when asked for."""
        return SyntheticSource(self)

    @property
    def knows_optimum(self) -> bool:
        """Standardised features, components and records of one norm have optima of their own."""
        return not self.pools_records and self.record_norm is None


class SyntheticSource(Matrix):
    """Records made from the data set's own seed, so that they are the same whatever the scenario's seed."""

    target = TARGET

    def __init__(self, data: Synthetic) -> None:
        self._data = data
        self.names = tuple(f"x{j}" for j in range(data.features))
        self.columns = (*self.names, TARGET)
        self.num_rows, self.num_features = data.rows, data.features
        self.num_classes = {"logistic": 2, "linear": 0, "softmax": data.classes}[data.link]
        self.ranges = Ranges.linear(-np.ones(data.features), np.ones(data.features))

    @cached_property
    def features(self) -> Floats:
        """Already in their declared range."""
        rng = generator("synthetic features", self._data.seed)
        return rng.uniform(-1.0, 1.0, (self._data.rows, self._data.features))

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
        rng = generator("synthetic target", self._data.seed)
        if self._data.link == "linear":
            return np.asarray(scores + self._data.noise * rng.normal(size=len(scores)), dtype=np.float64)
        if self._data.link == "logistic":
            return np.asarray(rng.logistic(size=len(scores)) < scores, dtype=np.int64)
        # The largest of scores with independent Gumbel noise is a draw from the softmax.
        return np.asarray(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), dtype=np.int64)
