"""Image data sets: MNIST's digits of 28 x 28 pixels and CIFAR-10's colour images of 32 x 32 in ten classes.

Features are brightness in 0..1 (the published whole numbers 0..255 by 255), so that `scaling: none` is what
the thesis's experiments did; `declared` maps to [-1, 1]. MNIST's files are of LeCun's idx format, compressed
with gzip: the bytes 0, 0, 8 (numbers of one byte), the number of axes, each axis's length in four bytes, most
significant first, and then the numbers, the last axis fastest. A file of CIFAR-10's binary version holds
images of 3,073 bytes: the class, then 1,024 bytes each of red, green and blue, row by row: the order that a
convolutional network with `image: [3, 32, 32]` takes.

References: Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits, 1998. A. Krizhevsky:
Learning Multiple Layers of Features from Tiny Images, 2009. The draw `published`: A. Lowy's experiments on
MNIST (sections 3.2.5 and 3.3.3) and CIFAR-10 (section 3.3.3), as their public code does it.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from abc import abstractmethod
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.files import HOW, data_folder
from fedsim.common.seeds import generator
from fedsim.data.dataset import Dataset, Download
from fedsim.data.fetch import MOST
from fedsim.data.source import Design, Floats, Ints, Matrix, Ranges
from fedsim.data.transform import COLOURS

FIELD = "scenario.data"
BRIGHTEST = 255.0


class Images(Dataset):
    """Images whose records are drawn once and for all, apart from a scenario's own seed."""

    images = True
    repeated: ClassVar[str]  # where the published draw repeats an image: the start of a notice

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
        notice = f"{self.repeated}, and in training and test records alike (draw: published): the guarantee "
        notice += "is for a record, not for an image, and test errors are near training errors"
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
    """Places of `count` images of each label, in random order; InputError on `field` if there are fewer."""
    found = []
    for code, name in enumerate(names):
        places = np.flatnonzero(labels == code)
        if len(places) < count:
            raise InputError(field, count, f"at most {len(places):,}: the files have no more of {name}")
        found.append(rng.permutation(places)[:count])
    return found


SIDE = 28
MNIST_PIXELS = tuple(f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE))
EVEN, ODD = tuple("02468"), tuple("13579")
PAIRS = tuple((int(a), int(b)) for a in EVEN for b in ODD)
PAIR = "pair"
MNIST_POOL = 774  # images of a digit in the published draw: those of the rarest in a seventh of training

MNIST_URLS = ("http://yann.lecun.com/exdb/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
"""The authors' own page, and a copy that answers when it does not."""

MNIST_SHA256 = {
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
        f"`published` {MNIST_POOL}.",
    )

    def open(self) -> Matrix:
        """Reads labels; images when they are asked for."""
        return _MnistSource(self)

    @property
    def files(self) -> dict[str, Path]:
        """Images and labels of the part, by their names."""
        prefix = {"train": "train", "test": "t10k"}[self.part]
        return {name: data_folder() / "mnist" / name for name in MNIST_SHA256 if name.startswith(prefix)}

    @property
    def downloads(self) -> tuple[Download, ...]:
        """The files of the part, with download addresses."""
        return tuple(
            Download(path, tuple(folder + name for folder in MNIST_URLS), MNIST_SHA256[name])
            for name, path in self.files.items()
        )


class _MnistSource(ImageSource):
    """The records that a draw gives; under the draw `published` each says which pair of digits it is for."""

    names = MNIST_PIXELS
    num_features = len(MNIST_PIXELS)
    ranges = Ranges.linear(np.zeros(len(MNIST_PIXELS)), np.ones(len(MNIST_PIXELS)))
    label_column = "digit"
    label_pairs = (EVEN, ODD)

    def __init__(self, data: Mnist) -> None:
        self._data = data
        self.target = data.task
        self.num_classes = {"digit": 10, "parity": 2}[data.task]
        self.columns = (*MNIST_PIXELS, "digit", "parity")
        if data.draw == "published":
            self.columns += (PAIR,)
            self.silo_column, self.silos = PAIR, tuple(f"{a}+{b}" for a, b in PAIRS)
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
        pools = self._kept(data.images_per_digit or MNIST_POOL)
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


Bytes = NDArray[np.uint8]
_IDX_BYTES = 8  # the format's code for numbers of one byte


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
        if head[:4] != bytes([0, 0, _IDX_BYTES, axes]) or len(head) < 4 + 4 * axes:
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


CIFAR_PIXELS = tuple(
    f"{colour}_{row}_{column}" for colour in COLOURS for row in range(32) for column in range(32)
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_POOL = 1000  # images of a class in the published draw: a fifth of the training part's

PARTS = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
INSIDE = "cifar-10-batches-bin/"
CIFAR_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"  # SHA-256 of the archive
BYTES = 10_000 * (len(CIFAR_PIXELS) + 1)  # of each file in it; no checksums of its files are published


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
        f"`published` {CIFAR_POOL:,}.",
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
            Download(path, (CIFAR_URL,), None, INSIDE + name, CIFAR_SHA256, BYTES)
            for name, path in self.files.items()
        )


class _Cifar10Source(ImageSource):
    """The records that a draw gives, in the files' order where nothing is drawn."""

    target = "class"
    names = CIFAR_PIXELS
    columns = (*CIFAR_PIXELS, "class")
    num_features = len(CIFAR_PIXELS)
    num_classes = len(CLASSES)
    classes = CLASSES
    ranges = Ranges.linear(np.zeros(len(CIFAR_PIXELS)), np.ones(len(CIFAR_PIXELS)))

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
        count, rng = data.images_per_class or CIFAR_POOL, generator("cifar10 images", data.seed)
        pools = of_each(self._classes, count, CLASSES, rng, f"{FIELD}.images_per_class")
        if data.draw == "distinct":
            return np.sort(np.concatenate(pools))
        rng = generator("cifar10 draw", data.seed)
        return np.concatenate([rng.choice(pool, count) for pool in pools])

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return len(self._drawn)

    def pixels(self, rows: Ints) -> Floats:
        found = np.empty((len(rows), len(CIFAR_PIXELS)))
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
    size, image = there(path).stat().st_size, len(CIFAR_PIXELS) + 1
    if size == 0 or size % image:
        hint = f"must hold images of {image:,} bytes each, and has {size:,} bytes; cut short?"
        raise InputError(FIELD, str(path), hint)
    images = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, image)
    if (found := images[:, 0].max()) >= len(CLASSES):
        raise InputError(FIELD, str(path), f"must begin every image with its class, 0 to 9, and has {found}")
    return images
