"""Synthetic visits of patients, who have many or few: records that belong together, drawn from a public seed.

Person u of m has s_u visits: floor(U^(-1/1.2)), a Pareto tail, at most 200; so the mean is 3.9, the median 1,
and the top hundredth of the persons have about a quarter of all visits. Features are uniform on [-1, 1], half
of their variance (before the map to that range) the person's own. A visit's label is 1 with the log-odds

    <w, x> + b_u + by_contribution (log s_u - E log s) <v, x>,    b_u ~ N(0, 0.75^2),

w of norm 3.8 and v of norm 1, with entries of equal size and random signs. Without the last term all persons
are alike, and the best model's log-loss is about .47, over records as over persons. With it (0.7, say) those
with many visits obey another model, and a model of records is one of few persons.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.common.seeds import generator
from fedsim.data.dataset import Dataset
from fedsim.data.partition import silo_names
from fedsim.data.source import Floats, Ints, Matrix, Ranges

TAIL, MOST, FEATURES = 1.2, 200, 10
MEAN_LOG = 0.61  # E log s
EFFECT, STRENGTH = 0.75, 3.8


class Visits(Dataset):
    """Synthetic visits of patients, most with one and few with very many; 10 features, two classes."""

    name: Literal["visits"] = Field("visits", description="The data set's name.")
    num_silos: int = Field(10, ge=1, description="Silos that the records name: hospitals.")
    persons_per_silo: int = Field(200, ge=2, description="Patients of each; none has two hospitals.")
    by_contribution: float = Field(
        0.0, ge=0, description="How much labels depend on the number of a person's visits; 0: not at all."
    )
    seed: int = Field(0, ge=0, description="Seed of the records, apart from the scenario's seed.")

    def open(self) -> Matrix:
        """The source; records are made now."""
        return _VisitsSource(self)

    @property
    def names_silos(self) -> bool:
        """Every visit has its hospital."""
        return True


class _VisitsSource(Matrix):
    target, silo_column, person_column = "readmitted", "hospital", "patient"
    names = tuple(f"x{j}" for j in range(FEATURES))
    columns = (*names, target, silo_column)
    num_features, num_classes = FEATURES, 2
    ranges = Ranges.linear(-np.ones(FEATURES), np.ones(FEATURES))

    def __init__(self, data: Visits) -> None:
        self._data, self.silos = data, silo_names(data.num_silos)
        self._num_persons = data.num_silos * data.persons_per_silo
        uniform = 1 - generator("stays contributions", data.seed).random(self._num_persons)
        self._visits = np.minimum(uniform ** (-1 / TAIL), MOST).astype(np.int64)
        self._persons = np.repeat(np.arange(self._num_persons), self._visits)
        self.num_rows = len(self._persons)

    def ids(self) -> list[str]:
        """Patients are numbered hospital by hospital."""
        return [str(each) for each in self._persons.tolist()]

    @cached_property
    def features(self) -> Floats:
        from scipy.special import ndtr

        rng = generator("stays features", self._data.seed)
        own = rng.normal(size=(self._num_persons, FEATURES))[self._persons]
        return np.asarray(2 * ndtr((own + rng.normal(size=own.shape)) / np.sqrt(2)) - 1)

    def other(self, column: str) -> Ints:
        return self._target if column == self.target else self._persons // self._data.persons_per_silo

    @cached_property
    def _target(self) -> Ints:
        rng = generator("stays labels", self._data.seed)
        w, v = rng.choice([-1.0, 1.0], (2, FEATURES)) / np.sqrt(FEATURES)
        effect = EFFECT * rng.normal(size=self._num_persons)
        more = self._data.by_contribution * (np.log(self._visits) - MEAN_LOG)
        x, whose = self.features, self._persons
        odds = x @ (STRENGTH * w) + effect[whose] + more[whose] * (x @ v)
        return np.asarray(rng.logistic(size=len(odds)) < odds, dtype=np.int64)
