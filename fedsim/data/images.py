"""What data sets of labelled images have in common: which images become records, and what that repeats."""

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
    """Where the published draw repeats an image, as the beginning of a sentence."""

    draw: Literal["distinct", "published"] = Field(
        "distinct",
        description="distinct: an image is one record; published: records are drawn with replacement from "
        "images, as the thesis's experiments did, so that an image is several records (simulation only).",
    )
    seed: int = Field(0, ge=0, description="Seed of what is kept and drawn, apart from the scenario's seed.")

    @property
    def pools_records(self) -> bool:
        """The published draw is of what no deployed silo has."""
        return super().pools_records or self.draw == "published"

    @property
    def not_private(self) -> list[str]:
        """What the published draw repeats."""
        if self.draw == "distinct":
            return super().not_private
        said = (
            f"{self.repeated}, and in training and test records alike (draw: published): the guarantee "
            "is for a record, not for an image, and test errors are near training errors"
        )
        return [said, *super().not_private]


class ImageSource(Matrix):
    """Images of which only the pixels that are asked for become numbers."""

    @abstractmethod
    def pixels(self, rows: Ints) -> Floats:
        """Brightness in 0..1 of these records, (n, d)."""

    @property
    def features(self) -> Floats:
        """Of all records."""
        return self.pixels(np.arange(self.num_rows))

    def design(self, rows: Ints) -> Design:
        """Of these rows alone."""
        return Design(self.pixels(rows), self.ranges, self.other(self.target)[rows], None)


def there(path: Path) -> Path:
    """The file, or an InputError that says where to put it."""
    if not path.is_file():
        raise InputError(FIELD, str(path), f"no such file: put it there, or {HOW}")
    return path


def of_each(
    labels: Ints, count: int, names: tuple[str, ...], rng: np.random.Generator, field: str
) -> list[Ints]:
    """Places of `count` images of each label, in random order.

    Args:
        labels: of every image, codes among `names`.
        count: how many of each.
        names: of the labels.
        rng: draws them.
        field: that asks for so many.

    Raises:
        InputError: on `field`: there are fewer of a label.
    """
    found = []
    for code, name in enumerate(names):
        places = np.flatnonzero(labels == code)
        if len(places) < count:
            raise InputError(field, count, f"at most {len(places):,}: the files have no more of {name}")
        found.append(rng.permutation(places)[:count])
    return found
