"""The silos' records as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.assign import assign
from fedsim.data.config import AnyPartition, Dataset
from fedsim.data.pca import check_components, principal_components
from fedsim.data.reserve import divide
from fedsim.data.scaling import declared, scaled_target, standardised
from fedsim.data.source import Design, Floats, Ints, Target

Splits = dict[str, tuple[Ints, Ints]]


@dataclass(frozen=True, eq=False)
class SiloSplit:
    """One silo's records: features (n, d) float64; targets (n,), float64 to regress on, int64 classes."""

    name: str
    train_features: Floats
    train_target: Target
    test_features: Floats
    test_target: Target


@dataclass(frozen=True, eq=False)
class Federation:
    """Silos sorted by name.

    `num_features` counts the intercept, which is the last feature. `num_classes` is 0 for regression.
    `optimum` is the population optimum where it is known, flat; under softmax laid out (features, classes).
    `digest` is the SHA-256 of all records as they were prepared and of who trains on which: of all silos,
    also where `silos` are some.
    """

    silos: tuple[SiloSplit, ...]
    num_features: int
    num_classes: int
    optimum: Floats | None
    digest: str


def load(
    data: Dataset, partition: AnyPartition, seed: int, trial: int, only: Collection[str] | None = None
) -> Federation:
    """Read the records of all silos, or of `only` some.

    Who holds which record depends on `seed` alone, so every trial has the same sizes. The split into training
    and test records is drawn for each (seed, trial, silo name), so `only` changes nothing in those it keeps.

    Raises:
        InputError: the data cannot be read or divided as asked, or a value is not finite.
    """
    source = data.open()
    rows = assign(data, source, partition, seed).rows()
    _check_only(only, rows)
    splits = {
        name: divide(mine, data.test_fraction, data.reserve, seed, trial, name) for name, mine in rows.items()
    }
    design = source.design()
    features, target = _prepare(data, design, splits)
    wanted = splits.keys() if only is None else set(only)
    kept = {name: both for name, both in splits.items() if name in wanted}
    silos = tuple(_silo(name, features, target, *both) for name, both in kept.items())
    optimum = design.optimum if data.pca is None else None  # it is one of the features as they were
    return Federation(
        silos, features.shape[1], source.num_classes, optimum, _digest(features, target, splits)
    )


def _check_only(only: Collection[str] | None, known: Collection[str]) -> None:
    for name in only or ():
        if name not in known:
            raise InputError("scenario.partition", name, f"no such silo; {suggest(name, known)}")


def _prepare(data: Dataset, design: Design, splits: Splits) -> tuple[Floats, Target]:
    """Scaled features with their intercept, and targets, of all records."""
    features, target = _scaled(data, design, splits), scaled_target(design, data.scaling)
    for values, what in ((features, "feature"), (target, "target")):
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise InputError(
                "scenario.data.scaling", data.scaling, f"row {row + 1} has a {what} that is not finite"
            )
    if data.pca is not None:
        check_components(data.pca, features.shape[1])
        features = principal_components(features, _training_rows(splits), data.pca)
    if data.intercept:
        features = np.hstack([features, np.ones((len(features), 1))])
    return features, target


def _scaled(data: Dataset, design: Design, splits: Splits) -> Floats:
    if data.scaling == "none":
        return design.features
    if data.scaling == "declared":
        return declared(design.features, design.ranges)
    return standardised(design.features, design.ranges, _training_rows(splits))


def _training_rows(splits: Splits) -> Ints:
    return np.concatenate([train for train, _ in splits.values()])


def _digest(features: Floats, target: Target, splits: Splits) -> str:
    """See `Federation`; of whole arrays, so that ten thousand silos cost no more than one."""
    sizes = [(name, len(train)) for name, (train, _) in sorted(splits.items())]
    found = hashlib.sha256(repr(sizes).encode())
    for array in (_training_rows(dict(sorted(splits.items()))), features, target):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _silo(name: str, features: Floats, target: Target, train: Ints, test: Ints) -> SiloSplit:
    return SiloSplit(name, features[train], target[train], features[test], target[test])
