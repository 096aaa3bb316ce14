"""CIFAR-10: colour images of 32 x 32 pixels in ten classes, in the binary version's files.

A file holds images of 3,073 bytes: the class, then 1,024 bytes each of red, green and blue, row by row.
Features are brightness in 0..1 (the published whole numbers 0..255 by 255) in that order, which is what a
convolutional network with `image: [3, 32, 32]` takes; `declared` maps them to [-1, 1].

References: A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. The draw `published`:
A. Lowy's CIFAR-10 experiment, section 3.3.3, as its public code does it.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.files import data_folder
from fedsim.common.seeds import generator
from fedsim.data.dataset import Download
from fedsim.data.images import BRIGHTEST, FIELD, Images, ImageSource, of_each, there
from fedsim.data.source import Floats, Ints, Matrix, Ranges

PIXELS = tuple(
    f"{colour}_{row}_{column}"
    for colour in ("red", "green", "blue")
    for row in range(32)
    for column in range(32)
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
POOL = 1000
"""Images of a class in the published draw: a fifth of the training part's."""

PARTS = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
INSIDE = "cifar-10-batches-bin/"
PUBLISHED = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
"""SHA-256 of the archive."""
BYTES = 10_000 * (len(PIXELS) + 1)
"""Of each file in it; no checksums of its files are published."""


class Cifar10(Images):
    """CIFAR-10: colour images of 32 x 32 pixels, 3,072 features in 0..1; ten classes.

    Its files are those of the folder `cifar10` in the data folder, where the published archive may
    stand instead. The published draw is class by class.
    """

    repeated = "images stand several times in a silo"
    name: Literal["cifar10"] = Field("cifar10", description="The data set's name.")
    part: Literal["train", "test"] = Field("train", description="50,000 images, or the other 10,000.")
    images_per_class: int | None = Field(
        None,
        ge=1,
        description="Keep so many images of each class, drawn by `seed`; default all, under the draw "
        f"`published` {POOL:,}.",
    )

    def open(self) -> Matrix:
        """Reads classes; pixels when they are asked for."""
        return _Cifar10Source(self)

    @property
    def files(self) -> dict[str, Path]:
        """The part's, by their names."""
        return {name: data_folder() / "cifar10" / name for name in PARTS[self.part]}

    @property
    def downloads(self) -> tuple[Download, ...]:
        """The part's files, which are in one archive."""
        return tuple(
            Download(path, (URL,), None, INSIDE + name, PUBLISHED, BYTES) for name, path in self.files.items()
        )


class _Cifar10Source(ImageSource):
    """The records that a draw gives, in the files' order where nothing is drawn."""

    target = "class"
    names = PIXELS
    columns = (*PIXELS, "class")
    num_features = len(PIXELS)
    num_classes = len(CLASSES)
    classes = CLASSES
    ranges = Ranges.linear(np.zeros(len(PIXELS)), np.ones(len(PIXELS)))

    def __init__(self, data: Cifar10) -> None:
        self._data = data

    @cached_property
    def _images(self) -> Any:
        """(images, 3073) bytes of each file, read when they are looked at."""
        return [_mapped(path) for path in self._data.files.values()]

    @cached_property
    def _classes(self) -> Ints:
        return np.concatenate([images[:, 0] for images in self._images]).astype(np.int64)

    @cached_property
    def _drawn(self) -> Ints:
        """The place in the files of each record's image."""
        data = self._data
        if data.draw == "distinct" and data.images_per_class is None:
            return np.arange(len(self._classes))
        count, rng = data.images_per_class or POOL, generator("cifar10 images", data.seed)
        pools = of_each(self._classes, count, CLASSES, rng, f"{FIELD}.images_per_class")
        if data.draw == "distinct":
            return np.sort(np.concatenate(pools))
        rng = generator("cifar10 draw", data.seed)
        return np.concatenate([rng.choice(pool, count) for pool in pools])

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return len(self._drawn)

    def pixels(self, rows: Ints) -> Floats:
        found = np.empty((len(rows), len(PIXELS)))
        ends = np.cumsum([len(images) for images in self._images])
        file = np.searchsorted(ends, self._drawn[rows], side="right")
        for k, images in enumerate(self._images):
            own = file == k
            found[own] = images[self._drawn[rows[own]] - ends[k] + len(images), 1:]
        found /= BRIGHTEST
        return found

    def other(self, column: str) -> Ints:
        return self._classes[self._drawn]


def _mapped(path: Path) -> Any:
    size, image = there(path).stat().st_size, len(PIXELS) + 1
    if size == 0 or size % image:
        hint = f"must hold images of {image:,} bytes each, and has {size:,} bytes; cut short?"
        raise InputError(FIELD, str(path), hint)
    images = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, image)
    if (found := images[:, 0].max()) >= len(CLASSES):
        raise InputError(FIELD, str(path), f"must begin every image with its class, 0 to 9, and has {found}")
    return images
