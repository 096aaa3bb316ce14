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

import numpy as np

from fedsim.data.datasets import Synthetic
from fedsim.data.source import Design, Floats, Labels, Ranges, Target, whole_numbers
from fedsim.protocol.seeds import generator

TARGET = "y"
STRENGTH = 3.0  # logits then have a standard deviation of about 1.7: neither separable nor noise


class SyntheticSource:
    """Records made from the data set's own seed, so that they are the same whatever the scenario's seed."""

    target = label_column = TARGET

    def __init__(self, config: Synthetic) -> None:
        self._config = config
        self._names = tuple(f"x{j}" for j in range(config.features))
        self.columns = (*self._names, TARGET)
        self.num_rows = config.rows
        self.num_features = config.features
        self.num_classes = {"logistic": 2, "linear": 0, "softmax": config.classes}[config.link]

    @cached_property
    def _features(self) -> Floats:
        rng = generator("synthetic features", self._config.seed)
        return rng.uniform(-1.0, 1.0, (self._config.rows, self._config.features))

    @cached_property
    def optimum(self) -> Floats:
        """w*: shape (d,), for softmax (d, classes) with zeros for the last class; d counts the intercept."""
        d = self._config.features + self._config.intercept
        free = self._config.classes - 1 if self._config.link == "softmax" else 1
        rng = generator("synthetic parameters", self._config.seed)
        drawn = rng.normal(0.0, STRENGTH / np.sqrt(d), (d, free))
        return np.hstack([drawn, np.zeros((d, 1))]) if self._config.link == "softmax" else drawn[:, 0]

    @cached_property
    def _target(self) -> Target:
        slopes, constant = (
            self.optimum[: self._config.features],
            self.optimum[self._config.features :].sum(axis=0),
        )
        scores = self._features @ slopes + constant
        rng = generator("synthetic target", self._config.seed)
        if self._config.link == "linear":
            return np.asarray(scores + self._config.noise * rng.normal(size=len(scores)), dtype=np.float64)
        if self._config.link == "logistic":
            return np.asarray(rng.logistic(size=len(scores)) < scores, dtype=np.int64)
        # The largest of scores with independent Gumbel noise is a draw from the softmax.
        return np.asarray(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), dtype=np.int64)

    def keys(self, column: str, field: str) -> Floats:
        """A feature or the target."""
        if column == TARGET:
            return self._target.astype(np.float64)
        return self._features[:, self._names.index(column)]

    def labels(self, column: str, field: str) -> Labels:
        """The classes '0', '1', ..., also one that no record happens to have."""
        if column == TARGET and self.num_classes:
            return Labels(self._target.astype(np.int64), tuple(str(k) for k in range(self.num_classes)))
        return whole_numbers(self.keys(column, field), column, field)

    def design(self) -> Design:
        """Features already in their declared range; the target of a linear model has none."""
        d = self._config.features
        ranges = Ranges(-np.ones(d), np.ones(d), np.zeros(d, dtype=bool), np.ones(d, dtype=bool))
        # Standardised features belong to other parameters, so the optimum would be wrong there.
        known = self._config.scaling != "training_statistics"
        return Design(self._features, ranges, self._target, None, self.optimum.reshape(-1) if known else None)
