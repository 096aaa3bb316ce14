"""The silos' sizes, and their records as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import InputError, suggest
from fedsim.data.dataset import Dataset
from fedsim.data.division import divide, training_records
from fedsim.data.fetch import obtain
from fedsim.data.partition import UNUSED, Assignment, Partition, silo_names
from fedsim.data.persons import People, dealt, require_several
from fedsim.data.prepare import Preparation, num_kept, prepare, squared_norms
from fedsim.data.recipe import Fitted, feature_names, recipe_of
from fedsim.data.source import Design, Floats, Ints, Outline, Ranges, Source
from fedsim.protocol.rows import Cohort, Rows
from fedsim.protocol.unit import RECORD, Unit


def outline(data: Dataset, partition: Partition, seed: int, unit: Unit = RECORD) -> Outline:
    """Sizes of what `load` returns, without reading feature values; labels and ids only where needed. Files
    that are missing are downloaded now, once, before a run has processes.
    """
    obtain(data.downloads)
    source = data.open()
    units = dealt(source, partition, unit)
    if (known := partition.counts(units)) is not None:
        names, counts = silo_names(len(known)), np.array(known)
    else:
        held = partition.assign(units, seed)
        names, counts = held.names, held.counts
    if isinstance(units, People):
        require_several(names, counts)
    train = training_records(names, counts, data.test_fraction, data.reserve)
    features = num_kept(data, source.num_features) + data.intercept
    unused = units.num_rows - int(counts.sum())
    norms = squared_norms(data, source)
    sizes, held_out = (dict(zip(names, own.tolist(), strict=True)) for own in (train, counts - train))
    classes = source.num_classes
    odd = units.odd_ids if isinstance(units, People) else ""
    return Outline(sizes, features, classes, units.num_rows, unused, norms, held_out, source.groups, odd)


class SiloSplit(NamedTuple):
    """One silo's rows: features float64; targets float64 to regress on, int64 classes."""

    name: str
    train: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class Silos(Sequence[SiloSplit]):
    """The rows of silos; each one's are made when they are asked for."""

    names: tuple[str, ...]
    train: Cohort
    test: Cohort

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, silo: Any) -> Any:
        return SiloSplit(self.names[silo], self.train[silo], self.test[silo])


@dataclass(frozen=True, eq=False)
class Hosted:
    """Some silos of a federation, sorted by name; `digest` is the whole `Federation`'s."""

    silos: Silos
    digest: str


@dataclass(frozen=True, eq=False)
class Federation(Hosted):
    """All silos, sorted by name.

    `num_features` counts the intercept, which is the last feature. `num_classes` is 0 for regression.
    `optimum` is the population optimum where it is known, flat; under softmax laid out (features, classes).
    `digest` is the SHA-256 of all records as they were prepared, of who trains on which, with unit `person`
    of whose they are, and of their groups where there is an attribute. `fitted` prepares other records as
    these were. `groups` are the names of the attribute's. `odd_ranges` are lines on declared ranges that miss
    their columns.
    """

    num_features: int
    num_classes: int
    optimum: Floats | None
    fitted: Fitted
    groups: tuple[str, ...] = ()
    odd_ranges: tuple[str, ...] = ()

    @property
    def most_records(self) -> int | None:
        """The most training records that one person has in one silo; None where none says whose they are."""
        whose = self._whose(0)
        return max((int(np.unique(each, return_counts=True)[1].max()) for each in whose), default=None)

    @property
    def shared_persons(self) -> int:
        """Persons with records in several silos, which only a simulation can count."""
        each = map(np.union1d, self._whose(0), self._whose(1))
        return int((np.unique(np.concatenate([[], *each]), return_counts=True)[1] > 1).sum())

    def _whose(self, part: int) -> list[np.ndarray]:
        own = (self.silos.train, self.silos.test)[part]
        return [] if own.rows.owners is None else np.split(own.rows.owners, own.bounds[1:-1])

    @property
    def empty_groups(self) -> list[str]:
        """A line for each declared group that no record of a silo is in."""
        found = np.unique([own for part in self._parts if part.groups is not None for own in part.groups])
        return [
            f"no record of any silo is in the declared group {name!r}"
            for code, name in enumerate(self.groups)
            if code not in found
        ]

    @property
    def nbytes(self) -> int:
        """Memory that the records take."""
        return sum(part.features.nbytes + part.target.nbytes for part in self._parts)

    @property
    def _parts(self) -> tuple[Rows, Rows]:
        return self.silos.train.rows, self.silos.test.rows


def load(data: Dataset, partition: Partition, seed: int, trial: int, unit: Unit = RECORD) -> Federation:
    """Read the records of all silos; InputError if they cannot be read or divided as asked, or a value is not
    finite.

    Who holds which record depends on `seed` alone, so every trial has the same sizes. The split into training
    and test records is drawn for each (seed, trial, silo name).
    """
    source = data.open()
    units = dealt(source, partition, unit)
    both = _splits(data, units, partition, seed, trial)
    every = np.arange(source.num_rows)
    design = source.design(every)
    recipe, odd = recipe_of(data, source, design), odd_ranges(data, source, design)
    known = source.num_classes, source.optimum if data.knows_optimum else None
    names, persons, by_person = source.groups, units.persons(), isinstance(units, People)
    del source, units  # whose raw records may take as much memory as those that are prepared
    rows, by = _prepared(data, design, every, persons, *both)
    del design
    counted = [rows.owners if by_person else None, rows.groups]
    arrays = [rows.features, rows.target, *(each for each in counted if each is not None)]
    fitted = Fitted(recipe, by.standard, by.components)
    silos, digest = _silos(both, rows), _digest(arrays, both[0])
    return Federation(silos, digest, rows.features.shape[1], *known, fitted, names, odd)


def load_silos(
    data: Dataset, partition: Partition, seed: int, trial: int, names: Collection[str], unit: Unit = RECORD
) -> Silos:
    """Read the records of the named silos, sorted by name: the same arrays as `load` gives them. InputError
    as `load`, or there is no such silo.

    No feature or target of another silo's record is taken from the source, unless preparing them takes all
    silos' records (`Dataset.pools_records`), which only a simulation can do. To find out whose record is
    whose a partition may read a column of all records, as its simulation must.
    """
    source = data.open()
    units = dealt(source, partition, unit)
    both, persons = _splits(data, units, partition, seed, trial), units.persons()
    for name in names:
        if name not in both[0].names:
            raise InputError("scenario.partition", name, f"no such silo; {suggest(name, both[0].names)}")
    train, test = (part.of(set(names)) for part in both)
    if data.pools_records:
        every = np.arange(source.num_rows)
        rows, _ = _prepared(data, source.design(every), every, persons, *both)
        return _silos((train, test), rows)
    some = np.flatnonzero((train.owner != UNUSED) | (test.owner != UNUSED))
    train, test = (replace(part, owner=part.owner[some]) for part in (train, test))
    whose = None if persons is None else persons[some]
    rows, _ = _prepared(data, source.design(some), some, whose, train, test)
    return _silos((train, test), rows)


def divided(
    data: Dataset, partition: Partition, seed: int, trial: int, unit: Unit = RECORD
) -> dict[str, tuple[Ints, Ints]]:
    """Numbers of each silo's training and test records in the data set, in the order of `load`."""
    train, test = _splits(data, dealt(data.open(), partition, unit), partition, seed, trial)
    others = test.by_name
    return {name: (own, others[name]) for name, own in train.by_name.items()}


def _splits(
    data: Dataset, units: Source, partition: Partition, seed: int, trial: int
) -> tuple[Assignment, Assignment]:
    whole = partition.assign(units, seed)
    train, test = divide(whole, data.test_fraction, data.reserve, seed, trial)
    if not isinstance(units, People):
        return train, test
    require_several(whole.names, whole.counts)
    return units.expanded(train), units.expanded(test)


def _prepared(
    data: Dataset, design: Design, rows: Ints, persons: Ints | None, train: Assignment, test: Assignment
) -> tuple[Rows, Preparation]:
    """Records of these rows, which are these persons'; `train` and `test` are places among them."""
    each: Iterable[Ints] = ()
    if data.scaling == "silo_statistics":
        each = map(np.append, train.by_name.values(), test.by_name.values())
    found, by = prepare(data, design, rows, train.every, each)
    return found._replace(owners=persons), by


def _silos(both: tuple[Assignment, Assignment], rows: Rows) -> Silos:
    """The silos' rows: each array is gathered at once."""
    return Silos(both[0].names, *(Cohort(part.bounds, rows.of(part.every)) for part in both))


def _digest(records: Sequence[NDArray[Any]], train: Assignment) -> str:
    """`Federation.digest`, of whole arrays, so that ten thousand silos cost no more than one."""
    found = hashlib.sha256(repr(list(zip(train.names, train.counts.tolist(), strict=True))).encode())
    for array in (train.every, *records):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


_LEAST = 0.5  # the share of a column's values that its range should hold: the others count as its ends


def odd_ranges(data: Dataset, source: Source, design: Design) -> tuple[str, ...]:
    """A line for each column whose declared range holds less than half of its values.

    >>> x, ranges = np.array([[0.1], [0.9], [0.2]]), Ranges.linear(np.array([20.0]), np.array([80.0]))
    >>> _missed(x, ranges, ["age"])
    ['the declared range [20, 80] of age holds 0 of 3 values: the others count as its ends']
    """
    found = list[str]()
    if data.scaling == "declared":
        found = _missed(design.features, design.ranges, feature_names(source, design.features.shape[1]))
        for name, (values, ranges) in design.encoded.items():
            found += _missed(values[:, None], ranges, [name])
    if design.target_range is not None and data.scaling != "none":
        found += _missed(design.target.astype(np.float64)[:, None], design.target_range, [source.target])
    return tuple(found)


def _missed(values: Floats, ranges: Ranges, names: Sequence[str]) -> list[str]:
    inside = (values >= ranges.lower) & (values <= ranges.upper)
    held = (inside | ranges.log & (values == 0)).sum(axis=0)  # on a logarithmic scale a zero is the lower end
    bad = np.flatnonzero(ranges.numeric & (held < _LEAST * len(values)))
    return [
        f"the declared range [{ranges.lower[i]:g}, {ranges.upper[i]:g}] of {names[i]} holds {held[i]:,} of "
        f"{len(values):,} values: the others count as its ends"
        for i in bad.tolist()
    ]
