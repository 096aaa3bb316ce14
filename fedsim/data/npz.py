"""A person's own arrays in a file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.suggest import suggest
from fedsim.data.arrays import SILO, TARGET, Arrays, ArraysSource
from fedsim.data.dataset import FITTED_SCALINGS, Dataset, Scaling

FIELD = "scenario.data.path"
_KNOWN = ("features", TARGET, SILO, "ranges")


class Npz(Dataset):
    """Your own arrays in an npz file: features (n, p), target (n,); if need be ranges (2, p) and silo (n,).

    Whole numbers from 0 are classes, real numbers are regressed on. Nothing in the file is ever unpickled.
    """

    name: Literal["npz"] = Field("npz", description="The data set's name.")
    path: Path = Field(description="The file, as np.savez writes it.")
    classes: int | None = Field(
        None,
        ge=2,
        description="Classes of a target of whole numbers, also those that no record here happens to have; "
        "default: as many as the largest target asks for.",
    )
    scaling: Scaling = Field(
        "none",
        description="none: leave features as they are; declared: map them by the file's ranges to [-1, 1]; "
        + FITTED_SCALINGS,
    )

    def open(self) -> ArraysSource:
        """The file's arrays; InputError where they do not fit together."""
        given = _read(self.path)
        self._check_ranges("ranges" in given)
        ranges = given.pop("ranges", None)
        try:
            if ranges is not None and ranges.shape[:1] != (2,):
                raise InputError("ranges", ranges.shape, "must be lower and upper ends, shape (2, p)")
            return Arrays(**given, ranges=ranges, classes=self.classes).open()
        except InputError as error:
            raise _wrong(self.path, f"{error.field}: {error.value!r}: {error.expected}") from None

    def _check_ranges(self, there: bool) -> None:
        if self.scaling == "declared" and not there:
            raise InputError("scenario.data.scaling", self.scaling, f"{self.path.name} has no array ranges")
        if there and "scaling" not in self.model_fields_set:
            expected = f"{self.path.name} has ranges: say whether they scale (declared) or not (none)"
            raise InputError("scenario.data.scaling", None, expected)

    @property
    def not_private(self) -> list[str]:
        """The ranges too."""
        public = "the ranges count as public, so take them from documentation, not from the data"
        return super().not_private + ([public] if self.scaling == "declared" else [])


def _read(path: Path) -> dict[str, Any]:
    """Every array of the file by its name."""
    if not path.is_file():
        raise _wrong(path, "no such file")
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            found = dict(file) if isinstance(file, np.lib.npyio.NpzFile) else {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _wrong(path, f"not a readable npz file ({error})") from None
    for name in found:
        if name not in _KNOWN:
            raise _wrong(path, f"unknown array {name!r}; {suggest(name, _KNOWN)}")
    if absent := [name for name in _KNOWN[:2] if name not in found]:
        raise _wrong(
            path, f"has no array {absent[0]!r}; np.savez(path, features=..., target=...) writes both"
        )
    return found


def _wrong(path: Path, expected: str) -> InputError:
    return InputError(FIELD, str(path), expected)
