"""The silos' sizes, and their records as arrays.

With a reserve, a silo permutes its records once, by a permutation that depends on no value and no trial. The
first h = round(fraction n / 2) train candidates, the next h score them. A run on the rest divides it anew in
every trial. So a record is for ever in one of three parts: to train candidates, to score them, or the rest.
Sizes are functions of n and the fraction, hence public. With unit `person` all this is said of persons
(`fedsim.data.persons`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import InputError, suggest
from fedsim.common.seeds import generator
from fedsim.data.dataset import Dataset, Reserve
from fedsim.data.fetch import obtain
from fedsim.data.partition import Partition, silo_names
from fedsim.data.persons import People, Splits, dealt, require_several
from fedsim.data.prepare import Prepared, num_kept, prepare, squared_norms
from fedsim.data.recipe import Fitted, feature_names, recipe_of
from fedsim.data.source import NO_LABEL, Design, Floats, Ints, Labels, Outline, Ranges, Source, Target
from fedsim.protocol.unit import RECORD, Person, Record


def outline(data: Dataset, partition: Partition, seed: int, unit: Record | Person = RECORD) -> Outline:
    """Sizes of what `load` returns, without reading feature values; labels and ids only where needed. Files
    that are missing are downloaded now, once, before a run has processes.
    """
    obtain(data.downloads)
    source = data.open()
    units = dealt(source, partition, unit)
    records = _records(units, partition, seed)
    if isinstance(units, People):
        require_several(dict(records))
    sizes = {name: training_records(n, data.test_fraction, data.reserve, name) for name, n in records}
    held_out = {name: n - sizes[name] for name, n in records}
    features = num_kept(data, source.num_features) + data.intercept
    unused = units.num_rows - sum(n for _, n in records)
    norms = squared_norms(data, source)
    classes = source.num_classes
    return Outline(sizes, features, classes, units.num_rows, unused, norms, held_out, source.groups)


def _records(source: Source, partition: Partition, seed: int) -> list[tuple[str, int]]:
    """Records of each silo, training and test together, sorted by name."""
    counts = partition.counts(source)
    if counts is not None:
        return list(zip(silo_names(len(counts)), counts, strict=True))
    assignment = partition.assign(source, seed)
    return sorted(zip(assignment.names, assignment.counts().tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class SiloSplit:
    """One silo's records: features (n, d) float64; targets (n,), float64 to regress on, int64 classes; whose
    each record is (n,), equal where two are one person's, None where the data do not say; and each record's
    group, None without an attribute.
    """

    name: str
    train_features: Floats
    train_target: Target
    test_features: Floats
    test_target: Target
    train_persons: Ints | None = None
    test_persons: Ints | None = None
    train_groups: Labels | None = None
    test_groups: Labels | None = None


@dataclass(frozen=True, eq=False)
class Hosted:
    """Some silos of a federation, sorted by name; `digest` is the whole `Federation`'s."""

    silos: tuple[SiloSplit, ...]
    digest: str


@dataclass(frozen=True, eq=False)
class Federation(Hosted):
    """All silos, sorted by name.

    `num_features` counts the intercept, which is the last feature. `num_classes` is 0 for regression.
    `optimum` is the population optimum where it is known, flat; under softmax laid out (features, classes).
    `digest` is the SHA-256 of all records as they were prepared, of who trains on which, with unit `person`
    of whose they are, and of their groups where there is an attribute. `fitted` prepares other records as
    these were. `odd_ranges` are lines on declared ranges that miss their columns.
    """

    num_features: int
    num_classes: int
    optimum: Floats | None
    fitted: Fitted
    odd_ranges: tuple[str, ...] = ()

    @property
    def most_records(self) -> int | None:
        """The most training records that one person has in one silo; None where none says whose they are."""
        whose = [silo.train_persons for silo in self.silos if silo.train_persons is not None]
        return max((int(np.unique(each, return_counts=True)[1].max()) for each in whose), default=None)

    @property
    def shared_persons(self) -> int:
        """Persons with records in several silos, which only a simulation can count."""
        both = [(silo.train_persons, silo.test_persons) for silo in self.silos]
        each = [np.union1d(train, test) for train, test in both if train is not None and test is not None]
        return int((np.unique(np.concatenate([[], *each]), return_counts=True)[1] > 1).sum())

    @property
    def empty_groups(self) -> list[str]:
        """A line for each declared group that no record of a silo is in."""
        both = [labels for silo in self.silos for labels in (silo.train_groups, silo.test_groups) if labels]
        found = np.unique(np.concatenate([[NO_LABEL], *(labels.codes for labels in both)]))
        names = both[0].names if both else ()
        return [
            f"no record of any silo is in the declared group {name!r}"
            for code, name in enumerate(names)
            if code not in found
        ]

    @property
    def nbytes(self) -> int:
        """Memory that the records take."""
        parts = ("train_features", "train_target", "test_features", "test_target")
        return sum(getattr(silo, part).nbytes for silo in self.silos for part in parts)


def load(
    data: Dataset, partition: Partition, seed: int, trial: int, unit: Record | Person = RECORD
) -> Federation:
    """Read the records of all silos; InputError if they cannot be read or divided as asked, or a value is not
    finite.

    Who holds which record depends on `seed` alone, so every trial has the same sizes. The split into training
    and test records is drawn for each (seed, trial, silo name).
    """
    source = data.open()
    units = dealt(source, partition, unit)
    splits = _splits(data, units, partition, seed, trial)
    rows = np.arange(source.num_rows)
    design = source.design(rows)
    records = _prepared(data, design, rows, splits)
    persons = units.persons()
    counted = [persons] if persons is not None and isinstance(units, People) else []
    if design.groups is not None:
        counted.append(design.groups.codes)
    return Federation(
        _silos(splits, records, persons, design.groups),
        _digest([records.features, records.target, *counted], splits),
        records.features.shape[1],
        source.num_classes,
        source.optimum if data.knows_optimum else None,
        Fitted(recipe_of(data, source, design), records.by.standard, records.by.components),
        odd_ranges(data, source, design),
    )


def load_silos(
    data: Dataset,
    partition: Partition,
    seed: int,
    trial: int,
    names: Collection[str],
    unit: Record | Person = RECORD,
) -> tuple[SiloSplit, ...]:
    """Read the records of the named silos, sorted by name: the same arrays as `load` gives them. InputError
    as `load`, or there is no such silo.

    No feature or target of another silo's record is taken from the source, unless preparing them takes all
    silos' records (`Dataset.pools_records`), which only a simulation can do. To find out whose record is
    whose a partition may read a column of all records, as its simulation must.
    """
    source = data.open()
    units = dealt(source, partition, unit)
    splits, persons = _splits(data, units, partition, seed, trial), units.persons()
    for name in names:
        if name not in splits:
            raise InputError("scenario.partition", name, f"no such silo; {suggest(name, splits)}")
    own = {name: both for name, both in splits.items() if name in set(names)}
    if data.pools_records:
        design = source.design(all_rows := np.arange(source.num_rows))
        return _silos(own, _prepared(data, design, all_rows, splits), persons, design.groups)
    rows = np.sort(_joined(own, (0, 1)))
    at = rows.searchsorted  # positions of the silo's rows among the rows read
    places = {name: (at(train), at(test)) for name, (train, test) in own.items()}
    whose, design = None if persons is None else persons[rows], source.design(rows)
    return _silos(places, _prepared(data, design, rows, places), whose, design.groups)


def divided(
    data: Dataset, partition: Partition, seed: int, trial: int, unit: Record | Person = RECORD
) -> Splits:
    """Numbers of each silo's training and test records in the data set, in the order of `load`."""
    return _splits(data, dealt(data.open(), partition, unit), partition, seed, trial)


def _splits(data: Dataset, units: Source, partition: Partition, seed: int, trial: int) -> Splits:
    """Training and test rows of each silo, sorted by name."""
    rows = partition.assign(units, seed).rows()
    found = {
        name: divide(mine, data.test_fraction, data.reserve, seed, trial, name) for name, mine in rows.items()
    }
    if not isinstance(units, People):
        return found
    require_several({name: len(mine) for name, mine in rows.items()})
    return units.expanded(found)


def _prepared(data: Dataset, design: Design, rows: Ints, splits: Splits) -> Prepared:
    each = [np.concatenate(both) for both in splits.values()]
    return prepare(data, design, rows, _joined(splits, (0,)), each)


def _joined(splits: Splits, parts: tuple[int, ...]) -> Ints:
    """All silos' training rows (part 0), test rows (1), or both."""
    return np.concatenate([np.arange(0), *(both[part] for both in splits.values() for part in parts)])


def _silos(
    splits: Splits, records: Prepared, persons: Ints | None, groups: Labels | None
) -> tuple[SiloSplit, ...]:
    features, target, _ = records

    def cut(part: int) -> Iterator[tuple[Any, ...]]:
        """Each silo's features, target, persons and groups: views of arrays that are gathered at once."""
        rows, last = _joined(splits, (part,)), 0
        whole = features[rows], target[rows], None if persons is None else persons[rows]
        for both in splits.values():
            first, last = last, last + len(both[part])
            own = [None if each is None else each[first:last] for each in whole]
            yield *own, None if groups is None else groups.at(both[part])

    return tuple(
        SiloSplit(name, x, y, u, v, persons, others, own, theirs)
        for name, (x, y, persons, own), (u, v, others, theirs) in zip(splits, cut(0), cut(1), strict=True)
    )


def _digest(records: Sequence[NDArray[Any]], splits: Splits) -> str:
    """`Federation.digest`, of whole arrays, so that ten thousand silos cost no more than one."""
    found = hashlib.sha256(repr([(name, len(train)) for name, (train, _) in splits.items()]).encode())
    for array in (_joined(splits, (0,)), *records):
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
    if design.target_range is not None and data.scaling != "none":
        target = design.target.astype(np.float64)[:, None]
        found += _missed(target, design.target_range, [source.target])
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


def training_records(records: int, test_fraction: float, reserve: Reserve | None, silo: str) -> int:
    """The number of a silo's training records; InputError unless it can put aside two and keep one."""
    if reserve is None:
        return training_size(records, test_fraction)
    half = _half(records, reserve.fraction, silo)
    return half if reserve.use == "reserved" else training_size(records - 2 * half, test_fraction)


def divide(
    rows: Ints, test_fraction: float, reserve: Reserve | None, seed: int, trial: int, silo: str
) -> tuple[Ints, Ints]:
    """Training rows and test rows of one silo in one trial; errors as `training_records`."""
    if reserve is None:
        return split(rows, test_fraction, seed, trial, silo)
    half = _half(len(rows), reserve.fraction, silo)
    parts = np.split(generator("reserve", seed, silo).permutation(rows), [half, 2 * half])
    train, score, rest = (np.sort(part) for part in parts)
    return (train, score) if reserve.use == "reserved" else split(rest, test_fraction, seed, trial, silo)


def split(rows: Ints, test_fraction: float, seed: int, trial: int, silo: str) -> tuple[Ints, Ints]:
    """Training rows and test rows, drawn for this silo alone: other silos' presence changes nothing."""
    order = generator("split", seed, trial, silo).permutation(rows)
    train = training_size(len(rows), test_fraction)
    return np.sort(order[:train]), np.sort(order[train:])


def training_size(records: int, test_fraction: float) -> int:
    """n - round(test_fraction n), and at least 1.

    >>> training_size(10, 0.25), training_size(1, 0.99)
    (8, 1)
    """
    return max(1, records - round(test_fraction * records))


def _half(records: int, fraction: float, silo: str) -> int:
    half = round(fraction * records / 2)
    if half < 1 or records - 2 * half < 1:
        hint = f"silo {silo!r} would put aside {2 * half} of its {records} units; at least 2 are needed, "
        hint += "one to train and one to score with, and 1 must be left"
        raise InputError("scenario.data.reserve.fraction", fraction, hint)
    return half
