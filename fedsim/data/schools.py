"""Synthetic pupils of 139 schools, drawn from a public seed: many small silos, alike and not the same.

The shape is that of the School data set (Inner London Education Authority): 22 to 251 pupils a school, two
shares that a school states and 25 indicators of a pupil, beside the constant feature, and a target in [0, 1],

    y = .3 + <w + b_s, x> + e, cut to [0, 1],    w ~ N(0, .07^2 I), b_s ~ N(0, own^2 I), e ~ N(0, .14^2),

for a pupil x of school s. An indicator is of a category, whose shares each school has its own.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.common.seeds import generator
from fedsim.data.dataset import Dataset
from fedsim.data.partition import silo_names
from fedsim.data.source import Floats, Matrix, Ranges, Target

SCHOOLS = 139
SHARES = ("free_meals", "first_band")
CATEGORIES = {"year": 3, "sex": 2, "band": 3, "group": 11, "kind": 3, "denomination": 3}


class Schools(Dataset):
    """Synthetic exam scores in 139 schools of 22 to 251 pupils; 27 features, and a number to predict."""

    name: Literal["schools"] = Field("schools", description="The data set's name.")
    own: float = Field(0.02, ge=0, description="How far schools' coefficients are from the common ones.")
    seed: int = Field(0, ge=0, description="Seed of the records, apart from the scenario's seed.")

    def open(self) -> Matrix:
        """The source; records are made at first use."""
        return _SchoolsSource(self)

    @property
    def names_silos(self) -> bool:
        """Every pupil has a school."""
        return True


class _SchoolsSource(Matrix):
    target, silo_column, num_classes = "score", "school", 0
    names = (*SHARES, *(f"{name}={level}" for name, count in CATEGORIES.items() for level in range(count)))
    columns = (*names, target, silo_column)
    num_features, silos = len(names), silo_names(SCHOOLS)
    ranges = Ranges(np.zeros(27), np.ones(27), np.zeros(27, dtype=bool), numeric=np.arange(27) < len(SHARES))

    def __init__(self, data: Schools) -> None:
        self._data = data
        sizes = np.round(22 + 229 * np.linspace(0, 1, SCHOOLS) ** 1.4).astype(np.int64)
        self._schools = np.repeat(np.arange(SCHOOLS), sizes)
        self.num_rows = len(self._schools)

    @cached_property
    def features(self) -> Floats:
        rng = generator("schools features", self._data.seed)
        parts = [rng.uniform(size=(SCHOOLS, len(SHARES)))[self._schools]]
        for count in CATEGORIES.values():
            upto = rng.dirichlet(np.linspace(1, 8, count), SCHOOLS).cumsum(axis=1)[self._schools, :-1]
            parts.append(np.eye(count)[(rng.uniform(size=(self.num_rows, 1)) > upto).sum(axis=1)])
        return np.hstack(parts)

    def other(self, column: str) -> Target:
        if column != self.target:
            return self._schools
        rng = generator("schools scores", self._data.seed)
        w, b = rng.normal(0, 0.07, 27), rng.normal(0, self._data.own, (SCHOOLS, 27))
        scores = 0.3 + (self.features * (w + b[self._schools])).sum(axis=1)
        return np.asarray(np.clip(scores + rng.normal(0, 0.14, self.num_rows), 0, 1))
