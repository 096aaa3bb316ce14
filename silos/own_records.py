"""A deployed silo's own records, and what it remembers them by."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import numpy as np

from fedsim.common.errors import InputError
from fedsim.common.identity import Identity
from fedsim.data.prepare import prepare
from fedsim.data.source import Floats, Source, Target, require_labels
from silos.config import ROOT, Config


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """Features (n, d) with their intercept and targets (n,), prepared as a simulated silo's."""

    features: Floats
    target: Target
    num_classes: int

    @property
    def n(self) -> int:
        """Number of records; public."""
        return len(self.target)

    @property
    def num_features(self) -> int:
        """Features of a record, the intercept included; public."""
        return int(self.features.shape[1])

    def digest(self, identity: Identity) -> str:
        """What these records are recognised by, 64 hexadecimal digits, of a key that only the silo has.

        A plain digest would tell whoever can guess the records whether the guess is right, and the heads of
        the ledger's chain, which leave the silo, are made of it.
        """
        key = identity.sign(b"fedsim records\n")  # which is signed nowhere else
        found = hmac.new(key, str(self.num_classes).encode(), hashlib.sha256)
        for array in (self.features, self.target):
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


def read_records(config: Config) -> OwnRecords:
    """All records of the silo, read, checked and prepared; each by itself.

    Raises:
        InputError: they cannot be read, a value is not what the schema declares, or some are another silo's.
    """
    try:
        source = config.records.open()
        _check_alone(source)
        _check_declared(config, source)
        rows = np.arange(source.num_rows)
        features, target, _ = prepare(config.records, source.design(rows), rows, rows)
    except InputError as error:
        field = error.field.replace("scenario.data", f"{ROOT}.records", 1)
        raise InputError(field, error.value, error.hint) from None
    return OwnRecords(features, target, source.num_classes)


def _check_declared(config: Config, source: Source) -> None:
    """Every greeting states the number of classes: counted in the records, it would tell of one of them."""
    if source.num_classes and getattr(config.records, "classes", source.num_classes) is None:
        hint = "the number of classes is public, so declare it: it is not to be counted in the records"
        raise InputError("scenario.data.classes", None, hint)


def _check_alone(source: Source) -> None:
    if source.silo_column is None:
        return
    labels = source.labels(source.silo_column, "scenario.data.path")
    if len(labels.names) > 1:
        hint = "must hold this silo's records alone, and has a column of silos' names"
        raise InputError("scenario.data.path", labels.names[:3], hint)
    require_labels(labels.codes, source.silo_column, "scenario.data.silo_column")
