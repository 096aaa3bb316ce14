"""What the loader asks of a data set: counts and labels cheaply, feature values once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Target = Floats | Ints


@dataclass(frozen=True, eq=False)
class Labels:
    """A column as labels: record r has the label `names[codes[r]]`."""

    codes: Ints
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ranges:
    """Declared ranges of d columns; all fields have shape (d,)."""

    lower: Floats
    upper: Floats
    log: NDArray[np.bool_]  # map the logarithm, not the value
    numeric: NDArray[np.bool_]  # False: a category's indicator, which no scaling touches


@dataclass(frozen=True, eq=False)
class Design:
    """All records as numbers, before scaling: missing values filled, categories as indicators."""

    features: Floats  # (n, d)
    ranges: Ranges
    target: Target  # (n,): float64 to regress on, int64 classes
    target_range: Ranges | None  # of one column; None: the target is not scaled
    optimum: Floats | None = None  # flat population optimum, intercept included


class Source(Protocol):
    """One data set. Only `design` reads feature values, and only a partition that needs a column reads it."""

    @property
    def target(self) -> str:
        """Name of the target column."""

    @property
    def label_column(self) -> str:
        """Column with the finest labels; the target unless the data set says otherwise."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns a partition may name."""

    @property
    def num_rows(self) -> int:
        """Records in the data set."""

    @property
    def num_features(self) -> int:
        """Features, the intercept not counted."""

    @property
    def num_classes(self) -> int:
        """Classes of the target; 0 for regression."""

    def keys(self, column: str, field: str) -> Floats:
        """What to sort records by, shape (n,): numbers themselves, categories by their place."""

    def labels(self, column: str, field: str) -> Labels:
        """A column as labels; InputError on `field` where it measures something and has none."""

    def design(self) -> Design:
        """All feature values and targets."""


def resolve(source: Source, column: str | None, field: str) -> str:
    """The column that `column` names: None or the word `target` stand for the target."""
    if column is None or (column == "target" and column not in source.columns):
        return source.target
    if column not in source.columns:
        raise InputError(field, column, f"no such column; {suggest(column, source.columns)}")
    return column


def whole_numbers(values: Floats, column: str, field: str) -> Labels:
    """Labels of a column of whole numbers, in increasing order."""
    if not np.array_equal(values, np.round(values)):
        raise InputError(field, column, "a column of measured numbers has no labels; name a category column")
    found, codes = np.unique(values, return_inverse=True)
    return Labels(codes.astype(np.int64), tuple(str(int(value)) for value in found))
