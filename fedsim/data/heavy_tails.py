"""Records whose gradients have heavy tails, made from a public seed: what clips are measured on.

`regression`: features x uniform on [-1, 1]^d and a target y = <w*, x> + noise z, E|w*|^2 = STRENGTH^2. z is
Student-t with `tail` degrees of freedom, or where it is `skewed` Pareto of that tail index less its mean:
its k-th moment is finite for k < tail alone. Clipping symmetric noise shortens as much on either side, so a
small clip has no bias there; with skewed noise and an intercept it has.

The other two are the hard instances of Theorem 168 (thesis: chapter 4, Theorems 57 and 168), of labels that
are all 1, for `hinge_loss` in a ball of radius 1 around zero: as |x| <= 1 the loss is 1 - <w, x> there, the
theorem's but for the 1. Their optimum is nu / sqrt(d), nu a vector of signs.

- `rare`: x = nu / sqrt(d) with probability p, else 0, so that E|x|^k = p for every k;
- `signs`: x_j = +-1 / sqrt(d), independent, of mean nu_j / sqrt(d rows).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.common.seeds import generator
from fedsim.data.builtin import STRENGTH
from fedsim.data.dataset import Dataset
from fedsim.data.source import Floats, Matrix, Ranges, Target


class HeavyTails(Dataset):
    """Linear regression with heavy-tailed noise, or a hard instance for private learning from heavy tails."""

    name: Literal["heavy_tails"] = Field("heavy_tails", description="The data set's name.")
    law: Literal["regression", "rare", "signs"] = Field(
        "regression", description="A linear model, or one of the two hard instances of Theorem 168."
    )
    rows: int = Field(1000, ge=1, description="Records in all silos together.")
    features: int = Field(10, ge=1, description="Features, the intercept not counted.")
    tail: float = Field(2.2, gt=1, description="regression: noise has moments below this one alone.")
    skewed: bool = Field(False, description="regression: centred Pareto noise, not Student-t.")
    noise: float = Field(1.0, ge=0, description="regression: what the noise is multiplied by.")
    probability: float = Field(0.1, gt=0, le=1, description="rare: of a record that is not zero.")
    seed: int = Field(0, ge=0, description="Seed of parameters and records, apart from the scenario's seed.")

    def open(self) -> Matrix:
        """The source; records are made at first use."""
        return _HeavyTailsSource(self)

    @property
    def knows_optimum(self) -> bool:
        """Standardising, components and a record norm move the optimum, and so does an intercept's label."""
        asked = self.law == "regression" or not self.intercept
        return asked and not self.pools_records and self.record_norm is None


class _HeavyTailsSource(Matrix):
    target = "y"

    def __init__(self, data: HeavyTails) -> None:
        self._data = data
        self.names = tuple(f"x{j}" for j in range(data.features))
        self.columns = (*self.names, self.target)
        self.num_rows, self.num_features = data.rows, data.features
        self.num_classes = 0 if data.law == "regression" else 2
        self.ranges = Ranges.linear(-np.ones(data.features), np.ones(data.features))

    def _rng(self, what: str) -> np.random.Generator:
        return generator(f"heavy tails {what}", self._data.seed)

    @cached_property
    def optimum(self) -> Floats:
        """w*, (d,); the intercept comes last."""
        if self._data.law == "regression":
            d = self._data.features + self._data.intercept
            return self._rng("parameters").normal(0.0, STRENGTH / np.sqrt(d), d)
        signs: Any = self._rng("parameters").choice([-1.0, 1.0], self._data.features)
        return np.asarray(signs / np.sqrt(self._data.features))

    @cached_property
    def features(self) -> Floats:
        """Already in their declared range."""
        data, shape = self._data, (self._data.rows, self._data.features)
        if data.law == "regression":
            return self._rng("features").uniform(-1.0, 1.0, shape)
        drawn = self._rng("features").uniform(size=(data.rows, 1) if data.law == "rare" else shape)
        if data.law == "rare":
            return self.optimum * (drawn < data.probability)
        return self.optimum * np.where(drawn < (1 + 1 / np.sqrt(data.rows)) / 2, 1.0, -1.0)

    def other(self, column: str) -> Target:
        return self._target

    @cached_property
    def _target(self) -> Target:
        data, rng = self._data, self._rng("noise")
        if data.law != "regression":
            return np.ones(data.rows, dtype=np.int64)
        w, d = self.optimum, data.features
        if data.skewed:
            noise = rng.pareto(data.tail, data.rows) + 1 - data.tail / (data.tail - 1)
        else:
            noise = rng.standard_t(data.tail, data.rows)
        return np.asarray(self.features @ w[:d] + w[d:].sum() + data.noise * noise)
