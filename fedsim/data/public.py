"""Public records as a model takes them: each is prepared by itself, as a silo's are."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset
from fedsim.data.prepare import Prepared, prepare
from fedsim.data.source import Design, Source


class Published(NamedTuple):
    """Prepared records, where they are from, and the SHA-256 of their file: what `sha256sum` prints. Records
    without a file have that of their prepared numbers.
    """

    records: Prepared
    source: Source
    design: Design
    digest: str
    numbers: str  # SHA-256 of the prepared numbers


def read_public(data: Dataset, section: str) -> Published:
    """Read all public records; InputError on a field of `section` if they cannot be read, or there are
    none.
    """
    try:
        data.check_alone("scenario.data")
        source = data.open()
        rows = np.arange(source.num_rows)
        if not len(rows):
            raise InputError("scenario.data", data.name, "at least one public record; this set is empty")
        design = source.design(rows)
        records = prepare(data, design, rows, rows)
    except InputError as error:
        raise InputError(error.field.replace("scenario.data", section, 1), error.value, error.hint) from None
    numbers = _digest(records)
    path = getattr(data, "path", None)
    if isinstance(path, Path) and path.is_file():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Published(records, source, design, digest, numbers)
    return Published(records, source, design, numbers, numbers)


def _digest(records: Prepared) -> str:
    found = hashlib.sha256(str(records.features.shape).encode())
    for array in records[:2]:
        found.update(np.ascontiguousarray(array, dtype="<f8").data)
    return found.hexdigest()
