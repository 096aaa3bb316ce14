"""MNIST: handwritten digits of 28 x 28 pixels.

Features are brightness in 0..1 (the published whole numbers 0..255 by 255), so that `scaling: none` is what
the thesis's experiments did, and `declared` maps to [-1, 1].

Files are of LeCun's idx format, compressed with gzip: the bytes 0, 0, 8 (numbers of one byte), the number of
axes, each axis's length in four bytes, most significant first, and then the numbers, the last axis fastest.

References: Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits, 1998. The draw
`published`: A. Lowy's MNIST experiments, sections 3.2.5 and 3.3.3, as their public code does it.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.files import data_folder
from fedsim.common.seeds import generator
from fedsim.data.dataset import Download
from fedsim.data.fetch import MOST
from fedsim.data.images import BRIGHTEST, FIELD, Images, ImageSource, of_each, there
from fedsim.data.source import Floats, Ints, Labels, Matrix, Ranges

SIDE = 28
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))
EVEN, ODD = tuple("02468"), tuple("13579")
PAIRS = tuple((int(a), int(b)) for a in EVEN for b in ODD)
PAIR = "pair"
POOL = 774
"""Images of a digit in the published draw: as many as a seventh of the training part has of the rarest."""

FOLDERS = ("http://yann.lecun.com/exdb/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
"""The authors' own page, and a copy that answers when it does not."""

PUBLISHED = {
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of the files' uncompressed content."""


class Mnist(Images):
    """MNIST: handwritten digits of 28 x 28 pixels, 784 features in 0..1; the digit, or odd against even.

    Its files are those of the folder `mnist` in the data folder. The published
    draw has for each of the 25 pairs of an even and an odd digit records from the images of the two.
    """

    repeated = "images stand in several silos, several times in one"
    name: Literal["mnist"] = Field("mnist", description="The data set's name.")
    task: Literal["digit", "parity"] = Field(
        "digit", description="digit: ten classes; parity: 1 for odd, 0 for even digits."
    )
    part: Literal["train", "test"] = Field("train", description="60,000 images, or the other 10,000.")
    images_per_digit: int | None = Field(
        None,
        ge=1,
        description="Keep so many images of each digit, drawn by `seed`; default all, under the draw "
        f"`published` {POOL}.",
    )

    def open(self) -> Matrix:
        """Reads labels; images when they are asked for."""
        return _MnistSource(self)

    @property
    def files(self) -> dict[str, Path]:
        """Images and labels of the part, by their names."""
        prefix = {"train": "train", "test": "t10k"}[self.part]
        return {name: data_folder() / "mnist" / name for name in PUBLISHED if name.startswith(prefix)}

    @property
    def downloads(self) -> tuple[Download, ...]:
        """The files of the part, with download addresses."""
        return tuple(
            Download(path, tuple(folder + name for folder in FOLDERS), PUBLISHED[name])
            for name, path in self.files.items()
        )


class _MnistSource(ImageSource):
    """The records that a draw gives; under the draw `published` each says which pair of digits it is for."""

    names = PIXELS
    num_features = len(PIXELS)
    ranges = Ranges.linear(np.zeros(len(PIXELS)), np.ones(len(PIXELS)))
    label_column = "digit"
    label_pairs = (EVEN, ODD)

    def __init__(self, data: Mnist) -> None:
        self._data = data
        self.target = data.task
        self.num_classes = {"digit": 10, "parity": 2}[data.task]
        self.columns = (*PIXELS, "digit", "parity")
        if data.draw == "published":
            self.columns += (PAIR,)
            self.silo_column = PAIR
        self._images, self._labels = data.files.values()

    @cached_property
    def _digits(self) -> Ints:
        digits = read_idx(there(self._labels), 1, FIELD)
        if not len(digits) or digits.max() > 9:
            found = digits.max() if len(digits) else "none"
            raise InputError(FIELD, str(self._labels), f"must hold labels 0 to 9, and has {found}")
        return digits.astype(np.int64)

    @cached_property
    def _drawn(self) -> tuple[Ints, Ints]:
        """For each record, the place of its image in the file, and of its pair in PAIRS."""
        data = self._data
        if data.draw == "distinct":
            places = np.arange(len(self._digits))
            if data.images_per_digit is not None:
                places = np.sort(np.concatenate(self._kept(data.images_per_digit)))
            return places, np.zeros(len(places), dtype=np.int64)
        pools = self._kept(data.images_per_digit or POOL)
        rng = generator("mnist draw", data.seed)
        drawn = [rng.choice(pools[digit], len(pools[digit])) for pair in PAIRS for digit in pair]
        return np.concatenate(drawn), np.repeat(np.arange(len(PAIRS)), 2 * len(pools[0]))

    def _kept(self, count: int) -> list[Ints]:
        rng, names = generator("mnist images", self._data.seed), tuple(map(str, range(10)))
        return of_each(self._digits, count, names, rng, f"{FIELD}.images_per_digit")

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return len(self._drawn[0])

    def pixels(self, rows: Ints) -> Floats:
        images = read_idx(there(self._images), 3, FIELD)
        if images.shape != (len(self._digits), SIDE, SIDE):
            hint = f"must hold an image of {SIDE} x {SIDE} for each of {len(self._digits):,} labels"
            shape = " x ".join(map(str, images.shape))
            raise InputError(FIELD, str(self._images), f"{hint}, and has shape {shape}")
        return images[self._drawn[0][rows]].reshape(len(rows), -1) / BRIGHTEST

    def other(self, column: str) -> Ints:
        if column == PAIR:
            return self._drawn[1]
        digits = self._digits[self._drawn[0]]
        return digits % 2 if column == "parity" else digits

    def labels(self, column: str, field: str) -> Labels:
        if column == PAIR:
            return Labels(self._drawn[1], tuple(f"{a}+{b}" for a, b in PAIRS))
        return super().labels(column, field)


Bytes = NDArray[np.uint8]
_BYTES = 8  # the format's code for numbers of one byte


def read_idx(path: Path, axes: int, field: str) -> Bytes:
    """The array of an idx file with `axes` axes, read-only; InputError on `field` if the file is missing, no
    whole gzip file, of another format, or of another length than its header states.
    """
    try:
        found = path.stat()
        return _read(path, axes, field, found.st_mtime_ns, found.st_size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(field, str(path), f"is no whole gzip file, cut short? ({error})") from None
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=2)  # images and labels: trials of one process read them once
def _read(path: Path, axes: int, field: str, changed: int, size: int) -> Bytes:
    with gzip.open(path) as file:
        head = file.read(4 + 4 * axes)
        if head[:4] != bytes([0, 0, _BYTES, axes]) or len(head) < 4 + 4 * axes:
            hint = f"must be an idx file of bytes with {axes} axes: it begins with {head[:4].hex(' ')}"
            raise InputError(field, str(path), hint)
        shape: tuple[Any, ...] = struct.unpack(f">{axes}I", head[4:])
        stated, count = f"says that it has {' x '.join(map(str, shape))} numbers", prod(shape)
        if count > MOST:
            raise InputError(field, str(path), f"{stated}: at most {MOST:,} are unpacked")
        numbers = np.frombuffer(file.read(count + 1), dtype=np.uint8)  # no more, whatever is in it
    if len(numbers) != count:
        found = f"{len(numbers):,}" if len(numbers) < count else "more"
        raise InputError(field, str(path), f"{stated}, and has {found}")
    return numbers.reshape(shape)
