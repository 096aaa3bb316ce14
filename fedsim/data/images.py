"""Common parts of image data sets: which images become records, and which images repeat."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.files import HOW
from fedsim.data.dataset import Dataset
from fedsim.data.source import Design, Floats, Ints, Matrix

FIELD = "scenario.data"
BRIGHTEST = 255.0


class Images(Dataset):
    """Images whose records are drawn once and for all, apart from a scenario's own seed."""

    repeated: ClassVar[str]
    """Where the published draw repeats an image: the start of a notice."""

    draw: Literal["distinct", "published"] = Field(
        "distinct",
        description="distinct: an image is one record; published: records are drawn with replacement from "
        "images, as the thesis's experiments did, so that an image is several records (simulation only).",
    )
    seed: int = Field(
        0, ge=0, description="Seed of the images kept and drawn, apart from the scenario's seed."
    )

    @property
    def pools_records(self) -> bool:
        """The published draw exists in simulation only."""
        return super().pools_records or self.draw == "published"

    @property
    def not_private(self) -> list[str]:
        """Also which images the published draw repeats."""
        if self.draw == "distinct":
            return super().not_private
        notice = (
            f"{self.repeated}, and in training and test records alike (draw: published): the guarantee "
            "is for a record, not for an image, and test errors are near training errors"
        )
        return [notice, *super().not_private]


class ImageSource(Matrix):
    """Images whose pixels become numbers only for the requested rows."""

    @abstractmethod
    def pixels(self, rows: Ints) -> Floats:
        """Brightness in 0..1 of these records, (n, d)."""

    @property
    def features(self) -> Floats:
        """Brightness of all records, (n, d)."""
        return self.pixels(np.arange(self.num_rows))

    def design(self, rows: Ints) -> Design:
        """The design of these rows alone."""
        return Design(self.pixels(rows), self.ranges, self.other(self.target)[rows], None)


def there(path: Path) -> Path:
    """The file, or an InputError that says where to put it."""
    if not path.is_file():
        raise InputError(FIELD, str(path), f"no such file: put it there, or {HOW}")
    return path


def of_each(
    labels: Ints, count: int, names: tuple[str, ...], rng: np.random.Generator, field: str
) -> list[Ints]:
    """Places of `count` images of each label, in random order; InputError on `field` if there are fewer.

    Args:
        labels: of every image, codes among `names`.
        count: images of each label.
        names: the labels' names.
        rng: draws them.
        field: the setting that asks for `count`.
    """
    found = []
    for code, name in enumerate(names):
        places = np.flatnonzero(labels == code)
        if len(places) < count:
            raise InputError(field, count, f"at most {len(places):,}: the files have no more of {name}")
        found.append(rng.permutation(places)[:count])
    return found
