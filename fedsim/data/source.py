"""The interface from which records are loaded. Counts and labels are cheap; feature values are read once."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import InputError, suggest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Target = Floats | Ints


NO_LABEL = -1  # the code of a record without a value; a label is never imputed
RECODING = 2  # the rule of `schema.coding`; by rule 1 each category had an indicator, beside an intercept too


@dataclass(frozen=True, eq=False)
class Labels:
    """A column as labels: record r has the label `names[codes[r]]`, and none where its code is NO_LABEL."""

    codes: Ints
    names: tuple[str, ...]

    def __getitem__(self, rows: Ints | NDArray[np.bool_] | slice) -> Labels:
        return Labels(self.codes[rows], self.names)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Declared ranges of d columns; all fields have shape (d,)."""

    lower: Floats
    upper: Floats
    log: NDArray[np.bool_]  # map the logarithm, not the value
    numeric: NDArray[np.bool_]  # False: a category's feature or a hat, which no scaling touches

    @classmethod
    def linear(cls, lower: Floats, upper: Floats) -> Ranges:
        """Ranges of measured numbers, none on a log scale."""
        return cls(lower, upper, np.zeros(len(lower), dtype=bool), np.ones(len(lower), dtype=bool))


@dataclass(frozen=True, eq=False)
class Design:
    """Records as numbers, before scaling: missing values filled, categories as features."""

    features: Floats  # (n, d)
    ranges: Ranges
    target: Target  # (n,): float64 to regress on, int64 classes
    target_range: Ranges | None  # of one column; None: the target is not scaled
    groups: Labels | None = None  # values of the attribute, none filled; None without an attribute
    encoded: Mapping[str, tuple[Floats, Ranges]] = field(
        default_factory=dict
    )  # of hats' columns, the numbers


@dataclass(frozen=True)
class Outline:
    """The public numbers of a federation.

    `sizes` maps silo names, sorted, to numbers of training records, the same in every trial; with unit
    `person` they and all that follow are numbers of persons. `num_features` counts the intercept.
    `num_classes` is 0 for regression. Of `num_records` the partition leaves out `unused`. `squared_norms` are
    a bound on the squared L2 norm of a prepared record, and what it is for values spread evenly over their
    ranges; None where nothing public bounds it, or the numbers to predict.
    `held_out` maps silo names to numbers of the other records. `groups` are the declared values of the
    attribute, () without one. `alike` says, of a simulation's records, which ids hardly differ; or nothing.
    """

    sizes: dict[str, int]
    num_features: int
    num_classes: int
    num_records: int = 0
    unused: int = 0
    squared_norms: tuple[float, float] | None = None
    held_out: dict[str, int] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    alike: str = ""


class Source(ABC):
    """One data set's records. Only `design` reads features, and only of the rows it is asked for."""

    target: str  # name of the target column
    columns: tuple[str, ...]  # those that a partition may name
    num_rows: int  # records in the data set
    num_features: int  # the intercept not counted
    num_classes: int  # of the target; 0 for regression
    label_column: str | None = None  # the column with the finest labels; None for the target
    # labels of that column that the partition `label_pairs` pairs if it names none
    label_pairs: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    silo_column: str | None = None  # has each record's silo
    person_column: str | None = None  # of ids that say whose each record is; never a feature
    groups: tuple[str, ...] = ()  # declared values of the attribute, of which records have one each or none
    recoded: bool = False  # whether categories or hats are among its features, beside an intercept

    def ids(self) -> Sequence[str] | None:
        """Whose each record is: num_rows exact texts; None without a column of ids. InputError, without an id
        in it, where a record has none.
        """
        return None

    def persons(self) -> Ints | None:
        """`ids` as numbers from 0 in the order of first records, shape (num_rows,)."""
        ids = self.ids()
        return None if ids is None else numbered(ids)

    @property
    def optimum(self) -> Floats | None:
        """Flat population optimum, intercept included, where it is known."""
        return None

    @property
    def squared_norms(self) -> tuple[float, float] | None:
        """As in `Outline`, of the features that declared scaling makes, without the intercept."""
        return None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in order: by default all columns but target, label, silo and person."""
        others = (self.target, self.label_column, self.silo_column, self.person_column)
        return tuple(column for column in self.columns if column not in others)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the target's classes in the order of their codes, including classes without records."""
        return tuple(str(k) for k in range(self.num_classes))

    @abstractmethod
    def keys(self, column: str, field: str) -> Floats:
        """Sort keys of the records, shape (num_rows,): numbers, or places of categories."""

    @abstractmethod
    def labels(self, column: str, field: str) -> Labels:
        """A column as labels; InputError on `field` where it measures something and has none."""

    @abstractmethod
    def design(self, rows: Ints) -> Design:
        """The records of these rows, shape (n,), in this order."""


class Matrix(Source):
    """A source whose features are a matrix in memory."""

    names: tuple[str, ...]  # of the features, in the order of the matrix's columns
    ranges: Ranges  # declared
    silos: tuple[str, ...] = ()  # names of the silos, whose numbers `silo_column` holds

    @property
    @abstractmethod
    def features(self) -> Floats:
        """Raw features, shape (num_rows, d)."""

    @abstractmethod
    def other(self, column: str) -> Target:
        """A column that is no feature, such as the target, shape (num_rows,)."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """`names`."""
        return self.names

    @property
    def squared_norms(self) -> tuple[float, float] | None:
        """Of numbers in [-1, 1]; None where a range, or that of a number to predict, is not declared."""
        known = self.num_classes > 0 and np.isfinite(self.ranges.lower).all()
        return (self.num_features, self.num_features / 3) if known else None

    def keys(self, column: str, field: str) -> Floats:
        """A feature's raw values, or the other column's."""
        if column in self.names:
            return self.features[:, self.names.index(column)]
        return self.other(column).astype(np.float64)

    def labels(self, column: str, field: str) -> Labels:
        """The target's classes and the silos' names; another column's whole numbers."""
        if names := {self.silo_column: self.silos, self.target: self.classes}.get(column):
            return Labels(self.other(column).astype(np.int64), names)
        return whole_numbers(self.keys(column, field), column, field)

    def design(self, rows: Ints) -> Design:
        """Raw features and targets; a number to predict has no range."""
        return Design(self.features[rows], self.ranges, self.other(self.target)[rows], None)


def resolve(source: Source, column: str | None, field: str) -> str:
    """The column that `column` names: None or the word `target` stand for the target."""
    if column is None or (column == "target" and column not in source.columns):
        return source.target
    if column not in source.columns:
        raise InputError(field, column, f"no such column; {suggest(column, source.columns)}")
    return column


def whole_numbers(values: Floats, column: str, field: str) -> Labels:
    """Labels of a column of whole numbers, in increasing order; NaN has none.

    >>> whole_numbers(np.array([7.0, 0.0, 7.0]), "digit", "scenario.partition.partition_by").names
    ('0', '7')
    """
    present = values[~np.isnan(values)]
    if not np.array_equal(present, np.round(present)):
        raise InputError(field, column, "a column of measured numbers has no labels; name a category column")
    found = np.unique(present)
    codes = np.where(np.isnan(values), NO_LABEL, np.searchsorted(found, values))
    return Labels(codes.astype(np.int64), tuple(str(int(value)) for value in found))


def numbered(values: Iterable[Hashable]) -> Ints:
    """Equal codes for equal values, from 0 in the order in which they first stand.

    >>> numbered(["b", "a", "b", "B"]).tolist()
    [0, 1, 0, 2]
    """
    places: dict[Hashable, int] = {}
    return np.array([places.setdefault(value, len(places)) for value in values], dtype=np.int64)


def alike(ids: Iterable[str]) -> int:
    """So many ids differ from others in spaces, case or leading zeros only: each is a person of its own.

    >>> alike(["a7", "A 7", "a07", "b", "b", "10"])
    2
    """
    exact = set(ids)
    return len(exact) - len({_ZEROS.sub("", "".join(each.split()).casefold()) for each in exact})


ALIKE = (
    "ids differ from others in spaces, case or leading zeros only: each counts as a person of its own, so "
    "write a person's id in one way"
)
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")


def require_labels(codes: Ints, column: str, field: str, cure: str = "complete the records first") -> None:
    """InputError on `field`, with the count, for records without a label: none is ever imputed."""
    without = np.flatnonzero(codes == NO_LABEL)
    if len(without):
        count = f"{len(without):,} of {len(codes):,} records have no value there"
        raise InputError(field, column, f"{count} (the first is row {without[0] + 1}); {cure}")
