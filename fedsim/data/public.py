"""Public records as a model takes them: each is prepared by itself, as a silo's are."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset
from fedsim.data.prepare import prepare
from fedsim.data.source import Design, Source
from fedsim.problems.public_records import PublicRecords


def read_public(data: Dataset, section: str) -> tuple[PublicRecords, Source, Design]:
    """Read all public records in float64, with the SHA-256 of their file, as `sha256sum` prints it; without a
    file, of their prepared numbers. InputError on a field of `section`: they cannot be read, or are none."""
    try:
        data.check()
        data.check_alone("scenario.data")
        source = data.open()
        rows = np.arange(source.num_rows)
        if not len(rows):
            raise InputError("scenario.data", data.name, "at least one public record; this set is empty")
        design = source.design(rows)
        found, _ = prepare(data, design, rows, rows)
    except InputError as error:
        raise InputError(error.field.replace("scenario.data", section, 1), error.value, error.hint) from None
    path = data.files.get("path")
    if path is not None and path.is_file():
        digest = hashlib.sha256(path.read_bytes())
    else:
        digest = hashlib.sha256(np.hstack([found.features, found.target[:, None]]).tobytes())
    features, target = torch.as_tensor(found.features), torch.as_tensor(found.target).double()
    return PublicRecords(features, target, digest.hexdigest()), source, design
